"""Plots of measured runs: roofline, step times, memory over a step, losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ridgeline import quantity
from ridgeline.records import LossCheck, MemoryPoint, Operator, StepProfile
from ridgeline.report.plots import (
    Figure,
    finite_or_gap,
    line,
    plain_text,
    plot_layout,
    rounded,
    shade,
)

LOSS_HOVER = "step %{x}: %{y:.4g}"
MOST_POINTS = 600
"""The points of a line: more cannot be told apart on a screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """What the hardware allows: the roof of the roofline."""

    flops_per_second: dict[str, float]
    """The peak of each dtype."""
    bytes_per_second: float | None


def roof_of(operators: Sequence[Operator]) -> Roof:
    """The roof that the operators' limits were computed with.

    A compute-bound limit is flops / peak, a memory-bound one bytes / bandwidth.
    """
    peaks: dict[str, list[float]] = {}
    bandwidths = []
    for operator in operators:
        if operator.limit_seconds <= 0:
            continue
        if operator.bound == "compute" and operator.flops > 0:
            peak = operator.flops / operator.limit_seconds
            peaks.setdefault(operator.dtype or "other", []).append(peak)
        elif operator.bound == "memory" and operator.bytes > 0:
            bandwidths.append(operator.bytes / operator.limit_seconds)
    return Roof(
        flops_per_second={dtype: median(values) for dtype, values in peaks.items()},
        bytes_per_second=median(bandwidths) if bandwidths else None,
    )


def roofline(runs: Sequence[tuple[str, StepProfile]], roof: Roof) -> Figure | None:
    """Operators by arithmetic intensity and attained rate, under the roof.

    `runs` are labelled profiles; the last one is drawn filled, those before it hollow.
    """
    points = [
        (label, index == len(runs) - 1, [operator for operator in run.operators if _has(operator)])
        for index, (label, run) in enumerate(runs)
    ]
    if not any(operators for _, _, operators in points):
        return None
    intensities = [op.flops / op.bytes for _, _, operators in points for op in operators]
    low, high = min(intensities) / 3, max(intensities) * 3
    if roof.bytes_per_second and roof.flops_per_second:
        ridges = [peak / roof.bytes_per_second for peak in roof.flops_per_second.values()]
        high = max(high, 2 * max(ridges))
    traces = _roof_lines(roof, low, high)
    traces += [_points(label, operators, filled) for label, filled, operators in points]
    layout = plot_layout("FLOP per byte moved", "FLOP/s attained")
    layout["xaxis"] |= {"type": "log", "tickformat": "~g", "dtick": 1}
    layout["yaxis"] |= {"type": "log", "tickformat": "~s", "dtick": 1}
    return {"data": traces, "layout": layout}


def _has(operator: Operator) -> bool:
    return operator.flops > 0 and operator.bytes > 0 and operator.seconds > 0


def _roof_lines(roof: Roof, low: float, high: float) -> list[Figure]:
    """One roof per dtype: the bandwidth's slope up to the ridge, the peak from there on."""
    bandwidth = roof.bytes_per_second
    traces: list[Figure] = []
    dashes = ("solid", "dash", "dot", "dashdot")
    for index, (dtype, peak) in enumerate(sorted(roof.flops_per_second.items())):
        ridge = peak / bandwidth if bandwidth else low
        start = min(low, ridge)
        corners = [(start, start * bandwidth if bandwidth else peak), (ridge, peak), (high, peak)]
        traces.append(
            _line(f"{dtype} limit, {quantity.scaled(peak, 'FLOP/s')}", corners)
            | {"line": {"color": "--limit", "width": 2, "dash": dashes[index % len(dashes)]}}
        )
    if bandwidth and not traces:
        slope = [(low, low * bandwidth), (high, high * bandwidth)]
        traces.append(
            _line(f"memory limit, {quantity.scaled(bandwidth, 'B/s')}", slope)
            | {"line": {"color": "--limit", "width": 2}}
        )
    return traces


def _line(name: str, points: Sequence[tuple[float, float]]) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [rounded(x) for x, _ in points],
        "y": [rounded(y) for _, y in points],
        "hoverinfo": "name",
    }


def _points(label: str, operators: Sequence[Operator], filled: bool) -> Figure:
    total = sum(operator.seconds for operator in operators) or 1.0
    colors = [f"--{operator.phase}" for operator in operators]
    texts = [
        f"{plain_text(operator.name)} {plain_text(operator.shapes)} {operator.dtype}<br>"
        f"{operator.phase}, {quantity.seconds(operator.seconds)} per step, "
        f"{quantity.percent(operator.limit_seconds / operator.seconds)} of its limit"
        for operator in operators
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label,
        "x": [rounded(operator.flops / operator.bytes) for operator in operators],
        "y": [rounded(operator.flops / operator.seconds) for operator in operators],
        "text": texts,
        "hovertemplate": "%{text}<br>%{y:.3s}FLOP/s at %{x:.3g} FLOP/byte<extra></extra>",
        "marker": {
            "size": [round(9 + 26 * math.sqrt(op.seconds / total), 1) for op in operators],
            "color": colors,
            "symbol": "circle" if filled else "circle-open",
            "opacity": 0.9 if filled else 0.6,
            "line": {"width": 1 if filled else 2, "color": "--card" if filled else colors},
        },
    }


def step_times(runs: Sequence[tuple[str, Sequence[float]]]) -> Figure | None:
    """The time of every timed step, in order."""
    drawn = [(label, samples) for label, samples in runs if samples]
    if not drawn:
        return None
    traces = []
    for index, (label, samples) in enumerate(drawn):
        steps = _thinned(len(samples))
        times = [samples[step] * 1e3 for step in steps]
        color, hover = _run_color(index, len(drawn)), "step %{x}: %{y:.4g} ms"
        traces.append(
            line(label, [step + 1 for step in steps], times, color, hover,
                 mode="lines+markers", width=1.5, marker={"size": 4})
        )  # fmt: skip
    layout = plot_layout("timed step", "ms")
    layout["yaxis"]["rangemode"] = "tozero"
    return {"data": traces, "layout": layout}


def memory_over_time(runs: Sequence[tuple[str, StepProfile]]) -> Figure | None:
    """Bytes alive over the profiled step; the phases of the last run are shaded."""
    drawn = [(label, run.memory_timeline) for label, run in runs if run.memory_timeline]
    if not drawn:
        return None
    traces = []
    for index, (label, timeline) in enumerate(drawn):
        points = _peaks(timeline)
        times = [point.seconds * 1e3 for point in points]
        sizes = [point.bytes / 1e6 for point in points]
        color, hover = _run_color(index, len(drawn)), "%{y:.4g} MB at %{x:.4g} ms, %{text}"
        phases = [point.phase for point in points]
        traces.append(line(label, times, sizes, color, hover, shape="hv", text=phases))
    layout = plot_layout("ms into the step", "MB")
    layout["yaxis"]["rangemode"] = "tozero"
    if len(drawn) == 1:
        layout["shapes"] = _phase_shades(drawn[0][1])
    return {"data": traces, "layout": layout}


def _phase_shades(timeline: Sequence[MemoryPoint]) -> list[Figure]:
    shades: list[Figure] = []
    for point, after in pairwise(timeline):
        if shades and shades[-1]["fillcolor"] == f"--{point.phase}":
            shades[-1]["x1"] = rounded(after.seconds * 1e3)
            continue
        start, end = rounded(point.seconds * 1e3), rounded(after.seconds * 1e3)
        shades.append(shade(start, end, f"--{point.phase}", 0.13))
    return shades[:MOST_POINTS]


def losses(check: LossCheck) -> Figure | None:
    """Losses of both runs by step; the band is the baseline's own spread under other seeds."""
    if not check.baseline or not check.candidate:
        return None
    traces: list[Figure] = []
    places = _thinned(len(check.baseline))
    steps = [place + 1 for place in places]
    if check.seed_spread:
        low = [check.baseline[place] - check.seed_spread for place in places]
        high = [check.baseline[place] + check.seed_spread for place in places]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "spread of seeds",
                "x": steps + steps[::-1],
                "y": finite_or_gap(high + low[::-1]),
                "fill": "toself",
                "fillcolor": "--band",
                "line": {"width": 0},
                "hoverinfo": "skip",
            }
        )
    for index, (label, values) in enumerate(
        (("as it stood", check.baseline), ("tuned", check.candidate))
    ):
        places = _thinned(len(values))
        steps = [place + 1 for place in places]
        dash = "solid" if index == 0 else "dot"
        chosen = [values[place] for place in places]
        traces.append(line(label, steps, chosen, _run_color(index, 2), LOSS_HOVER, dash=dash))
    return {"data": traces, "layout": plot_layout("step", "loss")}


def loss_curve(profile: StepProfile) -> Figure | None:
    """The losses that were seen while the script ran."""
    if len(profile.losses) < 2:
        return None
    places = _thinned(len(profile.losses))
    losses = [profile.losses[place] for place in places]
    trace = line("loss", [place + 1 for place in places], losses, "--accent", LOSS_HOVER)
    return {"data": [trace], "layout": plot_layout("step", "loss")}


def _run_color(index: int, runs: int) -> str:
    """The newest run stands out; what it is held against steps back."""
    return "--accent" if index == runs - 1 else "--muted"


def _thinned(count: int) -> list[int]:
    """Evenly spread places, the last one included, at most `MOST_POINTS` of them."""
    if count <= MOST_POINTS:
        return list(range(count))
    stride = (count - 1) / (MOST_POINTS - 1)
    return [round(index * stride) for index in range(MOST_POINTS)]


def _peaks(timeline: Sequence[MemoryPoint]) -> list[MemoryPoint]:
    """The highest point of each of at most `MOST_POINTS` stretches: the peak stays."""
    stride = max(1, math.ceil(len(timeline) / MOST_POINTS))
    stretches = (timeline[start : start + stride] for start in range(0, len(timeline), stride))
    return [max(stretch, key=lambda point: point.bytes) for stretch in stretches]
