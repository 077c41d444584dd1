"""Plots of a plan as plain data for plotly.js: memory, step, pipeline, scaling, Pareto front.

They follow `figures.py`: colours are names of the style sheet's variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.records.estimate import Estimate, MemoryEstimate
from ridgeline.report.plots import (
    Figure,
    bar_plot,
    bars,
    limit_line,
    line,
    looks,
    plain_text,
    plot_layout,
    rounded,
)
from ridgeline.report.views.layout_names import layout_name, plain_term, short_layout_name

if TYPE_CHECKING:
    from ridgeline.cost.pipeline_schedule import Block, Timeline
    from ridgeline.cost.scaling import ScalingCurve

MOST_BLOCKS = 2500
"""The blocks of a timeline: with more, the browser is slow and none can be told apart."""
NUMBERED_BLOCKS = 40
"""So many blocks of a kind in a stage still have room for their number."""
KIND_COLORS = {
    "forward": "--forward",
    "backward": "--backward",
    "input": "--backward",
    "weight": "--optimizer",
}


def memory_by_stage(memory: MemoryEstimate) -> Figure:
    """Peak bytes of each pipeline stage by term, under the line of what a device has."""
    sized = (item for stage in memory.stages for item in stage.terms.items())
    terms = list(dict.fromkeys(name for name, size in sized if size))
    chosen = looks(terms)
    stages = [f"stage {stage.stage}" for stage in memory.stages]
    traces: list[Figure] = [
        {
            "type": "bar",
            "name": plain_term(name),
            "x": stages,
            "y": [rounded(stage.terms.get(name, 0.0) / 1e9) for stage in memory.stages],
            "marker": {"color": chosen[name].color},
            "hovertemplate": "%{y:.3g} GB<extra>" + plain_text(plain_term(name)) + ", %{x}</extra>",
        }
        for name in terms
    ]
    layout = plot_layout("", "GB at the peak")
    layout["barmode"] = "stack"
    layout["bargap"] = 0.35 if len(stages) > 1 else 0.7
    capacity = memory.capacity_bytes / 1e9
    layout["yaxis"]["range"] = [0, rounded(1.12 * max(capacity, memory.peak_bytes / 1e9))]
    layout["shapes"] = [limit_line(y=rounded(capacity), color="--bad")]
    layout["annotations"] = [
        {
            "xref": "paper",
            "x": 1,
            "xanchor": "right",
            "y": rounded(capacity),
            "yanchor": "bottom",
            "text": f"capacity {quantity.memory(memory.capacity_bytes)}",
            "showarrow": False,
            "font": {"color": "--bad"},
        }
    ]
    return {"data": traces, "layout": layout}


def step_breakdown(estimates: Sequence[tuple[str, Estimate]]) -> Figure:
    """Exposed time by term, one bar per layout on one scale; the first stands on top."""
    sized = (item for _, estimate in estimates for item in estimate.breakdown.items())
    terms = list(dict.fromkeys(name for name, size in sized if size))
    chosen = looks(terms)
    labels = [label for label, _ in estimates]
    traces: list[Figure] = []
    for name in terms:
        sizes = [estimate.breakdown.get(name, 0.0) for _, estimate in estimates]
        texts = [
            f"{quantity.seconds(size)}, {quantity.percent(size / estimate.step_seconds)}"
            for size, (_, estimate) in zip(sizes, estimates, strict=True)
        ]
        traces.append(
            bars(labels, sizes, name=plain_term(name), color=chosen[name].color, hover="%{text}",
                 text=texts, textposition="none")
        )  # fmt: skip
    return bar_plot(traces, "seconds per step")


def pipeline_timeline(timeline: Timeline) -> Figure:
    """Every block of a pipeline step on its stage; of a long one, as `shown_seconds` says."""
    kinds: dict[str, list[tuple[int, Block]]] = {}
    end = shown_seconds(timeline)
    for rank, stage in enumerate(timeline.blocks):
        for block in stage:
            if block.end_seconds <= end:
                kinds.setdefault(block.kind, []).append((rank, block))
    layout = plot_layout("seconds", "")
    layout["xaxis"]["range"] = [0, rounded(end)]
    most = max(len(placed) for placed in kinds.values())
    if most <= NUMBERED_BLOCKS * timeline.num_stages:
        traces = [_numbered_blocks(kind, placed, timeline) for kind, placed in kinds.items()]
        layout["barmode"] = "overlay"
        layout["bargap"] = 0.12
        layout["yaxis"] |= {"autorange": "reversed", "type": "category"}
        return {"data": traces, "layout": layout}
    traces = [
        trace for kind, placed in kinds.items() for trace in _outlines(kind, placed, timeline)
    ]
    layout["yaxis"] |= {
        "range": [timeline.num_stages - 0.4, -0.6],
        "tickvals": list(range(timeline.num_stages)),
        "ticktext": [f"stage {rank}" for rank in range(timeline.num_stages)],
    }
    return {"data": traces, "layout": layout}


def shown_seconds(timeline: Timeline) -> float:
    """Until when a timeline is drawn: the whole, or its first `MOST_BLOCKS` blocks."""
    ends = sorted(block.end_seconds for stage in timeline.blocks for block in stage)
    return ends[min(MOST_BLOCKS, len(ends)) - 1]


KIND_NAMES = {"input": "backward, input half", "weight": "backward, weight half"}


def _numbered_blocks(kind: str, placed: Sequence[tuple[int, Block]], timeline: Timeline) -> Figure:
    """All blocks of one kind, as bars. Later model chunks are paler, as is usual."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": KIND_NAMES.get(kind, kind),
        "y": [f"stage {rank}" for rank, _ in placed],
        "base": [rounded(block.start_seconds) for _, block in placed],
        "x": [rounded(block.end_seconds - block.start_seconds) for _, block in placed],
        "text": [str(block.microbatch) for _, block in placed],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "customdata": [
            f"{kind} of micro-batch {block.microbatch}"
            + (f", chunk {block.chunk}" if timeline.num_chunks > 1 else "")
            for _, block in placed
        ],
        "marker": {
            "color": KIND_COLORS[kind],
            "opacity": [_opacity(block.chunk, timeline) for _, block in placed],
            "line": {"color": "--card", "width": 1},
        },
        "hovertemplate": "%{customdata}<br>%{base:.4g} s, %{x:.3g} s long<extra>%{y}</extra>",
    }


def _outlines(kind: str, placed: Sequence[tuple[int, Block]], timeline: Timeline) -> list[Figure]:
    """Blocks that are too many to be numbered: one path for each model chunk.

    A browser has one path to draw for them, in place of a bar for each.
    """
    traces: list[Figure] = []
    for chunk in range(timeline.num_chunks):
        x: list[float | None] = []
        y: list[float | None] = []
        for rank, block in placed:
            if block.chunk != chunk:
                continue
            start, end = rounded(block.start_seconds), rounded(block.end_seconds)
            x += [start, end, end, start, None]
            y += [rank - 0.44, rank - 0.44, rank + 0.44, rank + 0.44, None]
        if not x:
            continue
        name = KIND_NAMES.get(kind, kind)
        if timeline.num_chunks > 1:
            name = f"{name}, chunk {chunk}"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": x,
                "y": y,
                "line": {"width": 0, "color": KIND_COLORS[kind]},
                "fill": "toself",
                "fillcolor": KIND_COLORS[kind],
                "opacity": _opacity(chunk, timeline),
                "hoveron": "fills",
                "hoverinfo": "name",
            }
        )
    return traces


def _opacity(chunk: int, timeline: Timeline) -> float:
    return 1.0 - 0.5 * chunk / timeline.num_chunks


def scaling_efficiency(curves: Sequence[ScalingCurve]) -> Figure:
    """Efficiency over the number of devices."""
    given = looks([curve.name for curve in curves])
    traces = [
        line(
            curve.name,
            [point.num_devices for point in curve.points],
            [100 * point.efficiency for point in curve.points],
            given[curve.name].color,
            "%{fullData.name}, %{x} devices: %{y:.3g} %<br>%{text}",
            mode="lines+markers",
            dash="solid" if curve.kind == "weak" else "dot",
            text=[
                f"{quantity.seconds(point.step_seconds)} per step, {point.speedup:.3g}× one device,"
                f" {quantity.seconds(point.exposed_seconds)} of communication exposed"
                for point in curve.points
            ],
        )
        for curve in curves
    ]
    layout = plot_layout("devices", "efficiency, %")
    counts = sorted({point.num_devices for curve in curves for point in curve.points})
    layout["xaxis"] |= {"type": "log", "tickvals": counts, "ticktext": [f"{n:,}" for n in counts]}
    layout["yaxis"]["range"] = [0, 105]
    return {"data": traces, "layout": layout}


def pareto_members(estimates: Sequence[Estimate]) -> list[Estimate]:
    """The estimates than which none is both faster and smaller, by memory."""
    front: list[Estimate] = []
    ordered = sorted(estimates, key=lambda one: (one.memory.peak_bytes, one.step_seconds))
    for estimate in ordered:
        if not front or estimate.step_seconds < front[-1].step_seconds:
            front.append(estimate)
    return front


def pareto_front(estimates: Sequence[Estimate], best: Estimate | None = None) -> Figure:
    """Step time against peak memory; the line joins what nothing beats in both."""
    front = pareto_members(estimates)
    others = [one for one in estimates if not any(one is member for member in front)]
    traces: list[Figure] = []
    if others:
        traces.append(_choices("beaten in both", others, "--muted", "circle-open", "markers"))
    traces.append(_choices("Pareto front", front, "--accent", "circle", "lines+markers"))
    if best is not None:
        traces.append(_choices("chosen", [best], "--good", "star", "markers"))
        traces[-1]["marker"]["size"] = 16
    capacity = estimates[0].memory.capacity_bytes / 1e9
    layout = plot_layout("GB of the fullest device", "seconds per step")
    layout["yaxis"]["rangemode"] = "tozero"
    if max(one.memory.peak_bytes for one in estimates) > 0.5e9 * capacity:
        layout["shapes"] = [limit_line(x=rounded(capacity), color="--bad")]
    return {"data": traces, "layout": layout}


def _choices(name: str, chosen: Sequence[Estimate], color: str, symbol: str, mode: str) -> Figure:
    return line(
        name,
        [one.memory.peak_bytes / 1e9 for one in chosen],
        [one.step_seconds for one in chosen],
        color,
        "%{text}<br>%{x:.3g} GB",
        mode=mode,
        width=1.5,
        shape="hv",
        text=[
            f"{plain_text(layout_name(one.layout))}<br>"
            f"{quantity.seconds(one.step_seconds)} per step, MFU {quantity.percent(one.mfu)}"
            for one in chosen
        ],
        customdata=[short_layout_name(one.layout) for one in chosen],
        marker={"color": color, "size": 9, "symbol": symbol},
    )
