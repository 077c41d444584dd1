"""Pictures of a layout on its devices: who belongs to which group, and what each one sends."""

from __future__ import annotations

from typing import Any

from ridgeline import quantity
from ridgeline.records.estimate import Estimate
from ridgeline.records.layout import Layout
from ridgeline.report import document as doc
from ridgeline.report.plots import LOOKS, Figure, bar_plot, bars, looks, plot_layout
from ridgeline.report.views.layout_names import plain_term

MOST_DEVICES = 256
"""So many of the first devices are drawn: the rest repeats them."""
COLUMNS = 16
FEW_COLUMNS = 8
LABELLED = 32


def grid_figure(layout: Layout) -> Figure:
    """Devices in their order, tensor ranks next to each other: a colour for each pipeline stage.

    Where there is no pipeline, a colour for each replica.
    """
    shown = range(min(layout.num_devices, MOST_DEVICES))
    places = [_place(layout, rank) for rank in shown]
    by_stage = layout.pp > 1
    width = min(len(places), FEW_COLUMNS if len(places) <= LABELLED else COLUMNS)
    groups = [(stage if by_stage else data) % (len(LOOKS) - 1) for stage, data, _, _ in places]
    labels = [_label(layout, place) for place in places]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers+text" if len(places) <= LABELLED else "markers",
        "x": [rank % width for rank in shown],
        "y": [rank // width for rank in shown],
        "text": labels,
        "textposition": "bottom center",
        "textfont": {"size": 9},
        "marker": {
            "symbol": "square",
            "size": 30 if len(places) <= LABELLED else 20,
            "color": [LOOKS[group].color for group in groups],
            "line": {"width": 1, "color": "--card"},
        },
        "customdata": [
            f"device {rank}: stage {stage}, replica {data}, tensor rank {tensor}, context {context}"
            for rank, (stage, data, context, tensor) in zip(shown, places, strict=True)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
        "showlegend": False,
    }
    drawn = plot_layout("", "")
    drawn["xaxis"] = {"visible": False, "fixedrange": True, "range": [-0.7, width - 0.3]}
    drawn["yaxis"] = {
        "visible": False, "fixedrange": True, "range": [(len(places) - 1) // width + 0.8, -0.6]
    }  # fmt: skip
    return {"data": [trace], "layout": drawn}


def _place(layout: Layout, rank: int) -> tuple[int, int, int, int]:
    """(stage, replica, context rank, tensor rank) of a device: tensor ranks are innermost."""
    rest, tensor = divmod(rank, layout.tp)
    rest, context = divmod(rest, layout.cp)
    stage, data = divmod(rest, layout.dp)
    return stage, data, context, tensor


def _label(layout: Layout, place: tuple[int, int, int, int]) -> str:
    """The coordinates that differ between devices."""
    sizes = (layout.pp, layout.dp, layout.cp, layout.tp)
    parts = zip("pdct", place, sizes, strict=True)
    return "<br>".join(f"{letter}{index}" for letter, index, size in parts if size > 1)


def grid_note(layout: Layout) -> str:
    """How the picture is to be read."""
    colour = "pipeline stage" if layout.pp > 1 else "replica"
    more = ""
    if layout.num_devices > MOST_DEVICES:
        more = f" The first {MOST_DEVICES} of {quantity.count(layout.num_devices)} are drawn."
    return (
        f"A square is a device, a colour a {colour}; p, d, c and t are its pipeline stage, replica,"
        f" context and tensor rank.{more}"
    )


def traffic_figure(found: Estimate) -> Figure:
    """What one device sends in a step, and how long the step waits for it."""
    terms = [name for name, size in found.sent_bytes.items() if size]
    chosen = looks(terms)
    trace = bars(
        [plain_term(name) for name in terms],
        [found.sent_bytes[name] / 1e9 for name in terms],
        color=[chosen[name].color for name in terms],
        hover="%{y}: %{text}",
        text=[quantity.memory(found.sent_bytes[name]) for name in terms],
    )
    return bar_plot([trace], "GB sent by one device in a step")


def traffic_table(found: Estimate) -> doc.DataTable:
    """Bytes and exposed time by what is sent."""
    columns = (
        doc.words("for", "sent for"),
        doc.Column("bytes", "by a device"),
        doc.Column("seconds", "waited for"),
    )
    rows = [
        (plain_term(name), size, found.breakdown.get(name, 0.0))
        for name, size in found.sent_bytes.items()
        if size
    ]
    return doc.DataTable(columns, rows)
