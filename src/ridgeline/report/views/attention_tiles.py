"""Pictures of attention in tiles: which tiles meet, what lies on the chip, the bytes that move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.plots import (
    LOOKS,
    Figure,
    bar_plot,
    bars,
    labelled_bars,
    limit_line,
    plot_layout,
    rounded,
)

if TYPE_CHECKING:
    from ridgeline.cost.flash_attention import TiledAttention


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
    hover = "Q tile %{y}: %{x} K and V tiles"
    return bars(rows, counts, name=name, color=color, pattern=pattern, hover=hover)


def chip_figure(found: TiledAttention) -> Figure:
    """What one tile of queries needs on the chip, and the room in shared memory."""
    traces = [
        bars(
            ["shared memory" if place < 3 else "registers"],
            [size / 1024],
            name=name,
            color=LOOKS[place % len(LOOKS)].color,
            pattern=("", "/", "\\", "x", "-", "+")[place],
            hover="%{x:.4g} KiB",
        )
        for place, (name, size) in enumerate(found.chip_bytes.items())
    ]
    plot = bar_plot(traces, "KiB")
    if found.room_bytes:
        at = rounded(found.room_bytes / 1024)
        plot["layout"]["shapes"] = [limit_line(x=at)]
        plot["layout"]["annotations"] = [
            {"x": at, "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False,
             "text": "a unit has", "font": {"color": "--limit"}}
        ]  # fmt: skip
    return plot


def traffic_figure(found: TiledAttention) -> Figure:
    """Bytes between compute units and memory: plain, tiled, and the order of the least."""
    names = ["plain", "tiled", "least, by order"]
    sizes = [found.plain.moved_bytes, found.tiled.moved_bytes, found.least_bytes]
    return labelled_bars(
        names,
        [size / 1e6 for size in sizes],
        [quantity.memory(size) for size in sizes],
        "MB",
        color=[LOOKS[3].color, LOOKS[1].color, "--limit"],
        pattern=["/", "", "x"],
    )


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
