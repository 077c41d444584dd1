"""Pictures of attention in tiles: which tiles meet, what lies on the chip, the bytes that move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.figures import Figure, plot_layout, rounded
from ridgeline.report.looks import LOOKS

if TYPE_CHECKING:
    from ridgeline.cost.flash_attention import TiledAttention

ROOM_FOR_LABELS = 1.3
"""The width of a plot whose bars have labels at their ends, over the longest bar."""


def meeting_figure(found: TiledAttention) -> Figure:
    """For each tile of queries, the tiles of keys and values that pass it."""
    rows = list(range(found.num_q_tiles))
    left_out = [found.num_k_tiles - count for count in found.visited]
    traces = [
        _meeting("pass by", rows, list(found.visited), LOOKS[1].color, ""),
        _meeting("left out: above the diagonal", rows, left_out, LOOKS[3].color, "/"),
    ]
    layout = plot_layout("tiles of keys and values", "tile of queries")
    layout |= {"barmode": "stack", "bargap": 0.12}
    layout["yaxis"] |= {"autorange": "reversed"}
    return {"data": traces if any(left_out) else traces[:1], "layout": layout}


def _meeting(
    name: str, rows: list[int], counts: list[int], color: str, pattern: str
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": rows,
        "x": counts,
        "marker": {"color": color, "pattern": {"shape": pattern}},
        "hovertemplate": "Q tile %{y}: %{x} K and V tiles<extra>" + name + "</extra>",
    }


def chip_figure(found: TiledAttention) -> Figure:
    """What one tile of queries needs on the chip, and the room in shared memory."""
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": ["shared memory" if place < 3 else "registers"],
            "x": [rounded(size / 1024)],
            "marker": {
                "color": LOOKS[place % len(LOOKS)].color,
                "pattern": {"shape": ("", "/", "\\", "x", "-", "+")[place]},
            },
            "hovertemplate": "%{x:.4g} KiB<extra>" + name + "</extra>",
        }
        for place, (name, size) in enumerate(found.chip_bytes.items())
    ]
    layout = plot_layout("KiB", "")
    layout["barmode"] = "stack"
    layout["yaxis"] |= {"autorange": "reversed", "type": "category"}
    if found.room_bytes:
        at = rounded(found.room_bytes / 1024)
        layout["shapes"] = [
            {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1,
             "line": {"color": "--limit", "width": 2, "dash": "dash"}}
        ]  # fmt: skip
        layout["annotations"] = [
            {"x": at, "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False,
             "text": "a unit has", "font": {"color": "--limit"}}
        ]  # fmt: skip
    return {"data": traces, "layout": layout}


def traffic_figure(found: TiledAttention) -> Figure:
    """Bytes between compute units and memory: plain, tiled, and the order of the least."""
    names = ["plain", "tiled", "least, by order"]
    sizes = [found.plain.moved_bytes, found.tiled.moved_bytes, found.least_bytes]
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": [rounded(size / 1e6) for size in sizes],
        "text": [quantity.memory(size) for size in sizes],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {
            "color": [LOOKS[3].color, LOOKS[1].color, "--limit"],
            "pattern": {"shape": ["/", "", "x"]},
        },
        "hovertemplate": "%{y}: %{text}<extra></extra>",
        "showlegend": False,
    }
    layout = plot_layout("MB", "")
    layout["xaxis"]["range"] = [0, rounded(ROOM_FOR_LABELS * max(sizes) / 1e6)]
    layout["yaxis"] |= {"autorange": "reversed", "type": "category"}
    return {"data": [trace], "layout": layout}


def form_table(found: TiledAttention) -> doc.DataTable:
    """Both forms in figures."""
    columns = (
        doc.words("form"),
        doc.Column("moved_bytes", "moved"),
        doc.Column("intensity_flops_per_byte", "FLOP/byte"),
        doc.words("bound"),
        doc.Column("seconds", "least time"),
        doc.Column("kept_bytes", "scores in memory"),
    )
    rows = [
        (one.name, one.moved_bytes, one.intensity_flops_per_byte, one.bound, one.seconds,
         one.kept_bytes)
        for one in (found.plain, found.tiled)
    ]  # fmt: skip
    return doc.DataTable(columns, rows)
