"""Two traces side by side: which kernel or operator is new, gone, slower or faster, beyond noise.

Two captures seldom hold the same amount of work, so they are put on one scale first: by whole
profiler steps where both have them, else by how often the kernels that both ran were called (the
median ratio of calls, weighted by time; captures whose ratios differ widely are of different work
and are not judged).

Noise: each row's mean per call has a 95 % interval (Welch, 1947, normal quantile for its many
calls); a row is slower when the whole interval is above 0 and its change matters. The run as a
whole is slower when its step time is beyond the interval of the steps, or, without steps, its time
per unit of work is beyond the spread of the ratios; and by more than the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ridgeline import quantity
from ridgeline.errors import InputError
from ridgeline.trace.columns import Category, Floats, Trace
from ridgeline.trace.windows import profiler_steps, views

GROUPINGS = ("kernel", "operator")
_NORMAL_95 = 1.959964
_STUDENT_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
"""Two-sided 95 % points of Student's t for 1 … 20 degrees of freedom."""
_SAME_WORK = 0.15
"""Spread of the ratios of calls up to which two captures are of the same work."""


class ComparedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel or operator in both traces."""

    name: str
    status: str
    """`new`, `gone`, `slower`, `faster`, `more calls`, `fewer calls` or `same`."""
    calls_a: int
    calls_b: int
    """Calls in B as recorded, as those in A are."""
    mean_a_us: float
    mean_b_us: float
    low_us: float | None
    high_us: float | None
    """95 % interval of the difference of the means; None for new and gone."""
    change_us: float
    """B less A, in time per unit of A's work."""


class TraceComparison(msgspec.Struct, frozen=True, kw_only=True):
    """How trace B compares with trace A."""

    file_a: str
    file_b: str
    by: str
    verdict: str
    """`slower`, `faster`, `same` or `not comparable`."""
    ratio: float | None
    """Time of B over time of A for the same work."""
    low: float | None
    high: float | None
    scale: str
    """What the same work is: `steps` or `calls`."""
    work_ratio: float | None
    """Work in B over work in A."""
    idle_a_us: float
    idle_b_us: float
    summary: str
    rows: list[ComparedRow]
    """Kernels or operators, the largest change first."""
    warnings: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """How often a kernel or operator was called, and for how long."""

    count: int
    total_us: float
    mean_us: float
    variance: float
    """The variance of single calls, in µs²; 0 where there is one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """What one trace brings to the comparison: small enough to keep a thousand of them."""

    file: str
    by: str
    calls: dict[str, Calls]
    """By name of the kernel or operator."""
    steps: int
    step_lengths_us: Floats
    window_us: float
    """0 when there is nothing in it."""
    idle_us: float


_NEVER = Calls(count=0, total_us=0.0, mean_us=0.0, variance=0.0)


def compare_traces(
    a: Trace, b: Trace, *, by: str = "kernel", threshold: float = 0.02
) -> TraceComparison:
    """Is B slower than A, and where?"""
    return compare_times(rank_times(a, by=by), rank_times(b, by=by), threshold=threshold)


def rank_times(trace: Trace, *, by: str = "kernel") -> RankTimes:
    """The times of one trace, by `kernel` or `operator`."""
    check_grouping(by)
    steps = profiler_steps(trace)
    return RankTimes(
        file=trace.file,
        by=by,
        calls=_calls(trace, by),
        steps=len(steps),
        step_lengths_us=np.diff(np.array([step.start_us for step in steps])),
        window_us=_window(trace),
        idle_us=_idle(trace),
    )


def check_grouping(by: str) -> None:
    """Is there this way to align two traces?"""
    if by not in GROUPINGS:
        raise InputError(f"--by {by}: there is {', '.join(GROUPINGS)}")


def compare_times(a: RankTimes, b: RankTimes, *, threshold: float = 0.02) -> TraceComparison:
    """Is B slower than A, and where?"""
    warnings: list[str] = []
    if not a.calls or not b.calls:
        empty = a.file if not a.calls else b.file
        raise InputError(f"{empty}: no {a.by} in it to compare")
    steps_a, steps_b = a.step_lengths_us, b.step_lengths_us
    work, spread = _work_ratio(a.calls, b.calls)
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    stepped = min(len(steps_a), len(steps_b)) >= 2 and steps_a.sum() > 0 and steps_b.sum() > 0
    scale = "steps" if stepped else "calls"
    if scale == "steps":
        work = max(1, b.steps) / max(1, a.steps)
        ratio, low, high = _ratio_of_means(steps_a, steps_b)
    elif work is None or spread is None or spread > _SAME_WORK:
        warnings.append("the two traces run different kernels, or in other proportions")
    elif a.window_us <= 0 or b.window_us <= 0:
        warnings.append("a trace whose work takes no time cannot be compared")
    else:
        ratio = (b.window_us / a.window_us) / work
        low, high = ratio * (1 - spread), ratio * (1 + spread)
    rows = _rows(a.calls, b.calls, work or 1.0, threshold * _total(a.calls))
    verdict = _verdict(ratio, low, high, threshold)
    return TraceComparison(
        file_a=a.file, file_b=b.file, by=a.by, verdict=verdict, ratio=ratio, low=low, high=high,
        scale=scale, work_ratio=work, idle_a_us=a.idle_us, idle_b_us=b.idle_us,
        summary=_summary(verdict, ratio, low, high, scale, (a.idle_us, b.idle_us)),
        rows=rows, warnings=warnings,
    )  # fmt: skip


def _calls(trace: Trace, by: str) -> dict[str, Calls]:
    if by == "kernel":
        names, durations = trace.gpu.name, trace.gpu.duration_us
    else:
        rows = np.flatnonzero(trace.host.category == Category.OPERATOR)
        names, durations = trace.host.name[rows], trace.host.duration_us[rows]
    if not len(names):
        return {}
    order = np.argsort(names, kind="stable")
    used, first = np.unique(names[order], return_index=True)
    parts = np.split(durations[order], first[1:])
    return {
        trace.names[name]: Calls(
            count=len(part), total_us=float(part.sum()), mean_us=float(part.mean()),
            variance=_variance(part),
        )
        for name, part in zip(used.tolist(), parts, strict=True)
    }  # fmt: skip


def _total(calls: dict[str, Calls]) -> float:
    return sum(own.total_us for own in calls.values())


def _window(trace: Trace) -> float:
    gpu = trace.gpu
    if len(gpu):
        return float(gpu.end_us.max() - gpu.start_us.min())
    host = trace.host
    return float(host.end_us.max() - host.start_us.min()) if len(host) else 0.0


def _idle(trace: Trace) -> float:
    from ridgeline.trace.time.summary import summarize_view

    return sum(summarize_view(view).idle_us for view in views(trace))


def _work_ratio(a: dict[str, Calls], b: dict[str, Calls]) -> tuple[float | None, float | None]:
    """Work in B over work in A, and its relative spread: within it lies four fifths of the time."""
    shared = [name for name in a if name in b]
    weights = np.array([a[name].total_us + b[name].total_us for name in shared])
    whole = _total(a) + _total(b)
    if not shared or weights.sum() < 0.5 * whole:
        return None, None
    ratios = np.array([b[name].count / a[name].count for name in shared])
    middle = _weighted_quantile(ratios, weights, 0.5)
    return middle, _weighted_quantile(np.abs(ratios / middle - 1), weights, 0.8)


def _weighted_quantile(values: Floats, weights: Floats, quantile: float) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    at = int(np.searchsorted(reached, reached[-1] * quantile))
    return float(values[order][min(at, len(values) - 1)])


def _ratio_of_means(a: Floats, b: Floats) -> tuple[float, float, float]:
    """The ratio of the means of two sets of steps, with Fieller's first-order interval."""

    def error(steps: Floats) -> float:
        return _variance(steps) / len(steps) / float(steps.mean()) ** 2

    ratio = float(b.mean() / a.mean())
    relative = math.sqrt(error(a) + error(b))
    freedom = min(len(a), len(b)) - 1
    quantile = _STUDENT_95[freedom - 1] if freedom <= len(_STUDENT_95) else _NORMAL_95
    return ratio, ratio * (1 - quantile * relative), ratio * (1 + quantile * relative)


def _variance(values: Floats) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0


def _verdict(ratio: float | None, low: float | None, high: float | None, threshold: float) -> str:
    if ratio is None or low is None or high is None:
        return "not comparable"
    if low > 1 and ratio > 1 + threshold:
        return "slower"
    if high < 1 and ratio < 1 - threshold:
        return "faster"
    return "same"


def _rows(
    a: dict[str, Calls], b: dict[str, Calls], work: float, matters_us: float
) -> list[ComparedRow]:
    rows = []
    for name in {**a, **b}:
        own_a, own_b = a.get(name, _NEVER), b.get(name, _NEVER)
        change = own_b.total_us / work - own_a.total_us
        low = high = None
        if own_a.count and own_b.count:
            error = math.sqrt(own_a.variance / own_a.count + own_b.variance / own_b.count)
            low = own_b.mean_us - own_a.mean_us - _NORMAL_95 * error
            high = own_b.mean_us - own_a.mean_us + _NORMAL_95 * error
        rows.append(
            ComparedRow(
                name=name,
                status=_status(own_a.count, own_b.count / work, low, high,
                               abs(change) > matters_us),
                calls_a=own_a.count, calls_b=own_b.count, mean_a_us=own_a.mean_us,
                mean_b_us=own_b.mean_us, low_us=low, high_us=high, change_us=change,
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: (-abs(row.change_us), row.name))


def _status(
    calls_a: float, calls_b: float, low: float | None, high: float | None, matters: bool
) -> str:
    if low is None or high is None:
        return "gone" if calls_a else "new"
    if not matters:
        return "same"
    if low > 0:
        return "slower"
    if high < 0:
        return "faster"
    if calls_b > 1.1 * calls_a:
        return "more calls"
    return "fewer calls" if calls_b < 0.9 * calls_a else "same"


def _summary(
    verdict: str,
    ratio: float | None,
    low: float | None,
    high: float | None,
    scale: str,
    idle_us: Sequence[float],
) -> str:
    if ratio is None:
        return "Not comparable as a whole: the traces hold different work."
    what = "Per step" if scale == "steps" else "For the same number of kernel calls"
    word = {"slower": "is slower", "faster": "is faster", "same": "takes the same time"}[verdict]
    return (
        f"{what} B {word}: {ratio:.3f} times A's time [{low:.3f}, {high:.3f}]; idle "
        f"{quantity.microseconds(idle_us[0])} in A, {quantity.microseconds(idle_us[1])} in B."
    )
