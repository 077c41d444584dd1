"""Pictures of a training loop: lanes over time, gaps of the device by name, and their sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.plots import Figure, plot_layout, rounded

if TYPE_CHECKING:
    from ridgeline.cost.step_timeline import StepTimeline

LOOK = {
    "load": ("--data", "/"),
    "copy": ("--copy", "."),
    "forward": ("--forward", ""),
    "backward": ("--backward", ""),
    "reduce": ("--communication", "x"),
    "optimizer": ("--optimizer", "-"),
}
"""Kind of block → colour and fill."""
GAP_WORDS = {
    "data": "waiting for data",
    "copy": "waiting for the copy",
    "network": "waiting for gradients",
    "fill": "filling the queues",
}


def lane_figure(found: StepTimeline) -> Figure:
    """Every block on its lane, and the device's gaps with a frame around them."""
    traces: list[Figure] = []
    for kind, (color, pattern) in LOOK.items():
        blocks = [one for one in found.blocks if one.kind == kind]
        if not blocks:
            continue
        spans = [(one.lane, one.start_seconds, one.end_seconds) for one in blocks]
        texts = [f"{kind} of micro-batch {one.batch}" for one in blocks]
        look = {
            "color": color,
            "pattern": {
                "shape": pattern, "fillmode": "overlay", "fgcolor": "--card", "solidity": 0.2
            },
        }  # fmt: skip
        traces.append(_bars(kind, spans, texts, look))
    if found.gaps:
        spans = [("device", one.start_seconds, one.end_seconds) for one in found.gaps]
        texts = [GAP_WORDS[one.waits_for] for one in found.gaps]
        look = {"color": "rgba(0,0,0,0)", "line": {"color": "--bad", "width": 2}}
        traces.append(_bars("the device waits", spans, texts, look))
    layout = plot_layout("ms", "")
    layout |= {"barmode": "overlay", "bargap": 0.25}
    layout["yaxis"] |= {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": list(reversed(found.lanes)),
    }
    return {"data": traces, "layout": layout}


def _bars(
    name: str, spans: list[tuple[str, float, float]], texts: list[str], look: dict[str, Any]
) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [lane for lane, _, _ in spans],
        "base": [rounded(1e3 * start) for _, start, _ in spans],
        "x": [rounded(1e3 * (end - start)) for _, start, end in spans],
        "marker": look,
        "customdata": texts,
        "hovertemplate": "%{customdata}<br>from %{base:.4g} ms, %{x:.3g} ms long<extra></extra>",
    }


def lane_height(found: StepTimeline) -> int:
    """The height of the picture: so many lanes."""
    return 130 + 32 * len(found.lanes)


def gap_table(found: StepTimeline) -> doc.DataTable:
    """Where a step goes on the device: its work, and each gap."""
    columns = (
        doc.words("for", "The device"),
        doc.Column("seconds", "in a step"),
        doc.Column("share"),
    )
    work = found.busy_share * found.step_seconds
    rows: list[tuple[doc.Cell, ...]] = [("works", work, found.busy_share)]
    rows += [
        (GAP_WORDS[name], seconds, seconds / found.step_seconds)
        for name, seconds in sorted(found.waited_seconds.items(), key=lambda pair: -pair[1])
    ]
    return doc.DataTable(columns, rows)


def cure_words(found: StepTimeline) -> str:
    """What bounds the loop, and what would move it."""
    step = quantity.seconds(found.step_seconds)
    busy = quantity.percent(found.busy_share)
    start = f"A step takes {step}, and the device works {busy} of it"
    if found.bound == "compute":
        return f"{start}: the computation bounds it; a faster device or fewer FLOPs would help."
    lost = quantity.seconds(found.waited_seconds[found.bound])
    cure = {
        "data": f"{found.least_workers} workers would keep up, if there are cores for them",
        "copy": "pin the memory, so that copies run beside the computation; or copy less",
        "network": "let gradients travel under the backward pass, accumulate more, or send fewer"
        " bytes",
    }[found.bound]
    return f"{start}: it is {GAP_WORDS[found.bound]} for {lost}. Cure: {cure}."
