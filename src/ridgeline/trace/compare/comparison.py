"""Is B slower than A, and in which operators and kernels: `compare_traces(a, b)`.

Two captures seldom hold the same amount of work, so they are put on one scale first: by whole
profiler steps where both have enough of them, else by how often the kernels that both ran were
called, or the operators where kernels have other names (the median ratio of calls, weighted by
time; captures whose ratios differ widely, or whose operators get inputs of other sizes, are of
different work and are not judged).

B is slower when the whole 95 % interval (`timing.py`) is above 1 and the ratio beyond the
threshold, and the same when the interval lies within 10 % of 1. Where it holds both, or nothing
says how far a time may be off, there is no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ridgeline import quantity
from ridgeline.errors import InputError
from ridgeline.trace.columns import Floats, Trace
from ridgeline.trace.compare.matching import (
    MatchedWork,
    WorkLikeness,
    likeness,
    matched_operators,
)
from ridgeline.trace.compare.noise import joint_error
from ridgeline.trace.compare.sides import JobRepeats, joint_times
from ridgeline.trace.compare.times import NO_OPERATOR, RankTimes, WorkTimes, rank_times
from ridgeline.trace.compare.timing import TimeRatio, time_ratio

GROUPINGS = ("operator", "shape", "kernel")
_SAME_COUNTS = 0.15
"""Spread of the ratios of calls up to which two captures are of the same work."""
_ALIKE = 0.1
"""An interval within so much of 1 says that the times are the same."""
_MOST_KERNELS = 5
_ADVICE = (
    "record three profiler steps or more on each side (torch.profiler.schedule(active=4) and "
    "profiler.step() after every step), or give three traces of each"
)
_NEVER = WorkTimes()


class ComparedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One operator, kernel or class of kernels in both traces."""

    name: str
    status: str
    """`new`, `gone`, `slower`, `faster`, `more calls`, `fewer calls`, `same`, or `cannot tell`
    where it changed and nothing says how far its times may be off."""
    calls_a: int
    calls_b: int
    """Calls in B as recorded, as those in A are."""
    total_a_us: float
    total_b_us: float
    """Time in B for as much work as A's."""
    ratio: float | None
    """Time in B over time in A for the same work."""
    mean_a_us: float
    mean_b_us: float
    low_us: float | None
    high_us: float | None
    """95 % interval of the difference of the means; None where the calls do not tell it."""
    change_us: float
    """B less A, in time per unit of A's work."""
    kernels_a: list[str]
    kernels_b: list[str]
    """The kernels behind an operator, the longest first."""


class TraceComparison(msgspec.Struct, frozen=True, kw_only=True):
    """How trace B compares with trace A, or one job with another."""

    file_a: str
    file_b: str
    rank: int | None
    """The rank of B; None for a whole job, and where the trace does not say."""
    by: str
    measured: str
    """`GPU time`, or `host time` where the traces have no GPU work."""
    verdict: str
    """`slower`, `faster`, `same`, `cannot tell` or `not comparable`."""
    ratio: float | None
    """Time of B over time of A for the same work."""
    low: float | None
    high: float | None
    """95 % interval of the ratio; None where there is no verdict."""
    scale: str | None
    """What says how far the ratio may be off: `repeats`, `steps` or `window`."""
    work_ratio: float | None
    """Work in B over work in A."""
    same_operators_share: float | None
    """Share of the time that belongs to operators which both sides have."""
    same_order_share: float | None
    """Share of outermost operators that follow the same one on both sides."""
    same_inputs_share: float | None
    """Share of the time of common operators whose inputs have the same sizes on both sides."""
    idle_a_us: float
    idle_b_us: float
    """Time of the GPUs without work."""
    summary: str
    operators: list[ComparedRow]
    """Operators that launch work, the largest change first."""
    kernels: list[ComparedRow]
    """Kernels by name, the largest change first."""
    classes: list[ComparedRow]
    """Classes of kernels, the largest change first."""
    warnings: list[str]


def compare_traces(
    a: Trace, b: Trace, *, by: str = "operator", threshold: float = 0.02
) -> TraceComparison:
    """Is B slower than A, and where?"""
    check_grouping(by)
    return compare_sides(
        JobRepeats.of([rank_times(a, by=by)]), JobRepeats.of([rank_times(b, by=by)]),
        by=by, threshold=threshold,
    )  # fmt: skip


def check_grouping(by: str) -> None:
    """Is there this way to align two traces?"""
    if by not in GROUPINGS:
        raise InputError(f"--by {by}: there is {', '.join(GROUPINGS)}")


def compare_sides(
    a: JobRepeats, b: JobRepeats, *, by: str = "operator", threshold: float = 0.02
) -> TraceComparison:
    """Is job B slower than job A, and where? Either may be there several times."""
    whole_a, whole_b = a.whole, b.whole
    for whole in (whole_a, whole_b):
        if not whole.operators:
            raise InputError(f"{whole.file}: no kernel and no operator in it to compare")
    if whole_a.on_gpu != whole_b.on_gpu:
        without = whole_b.file if whole_a.on_gpu else whole_a.file
        raise InputError(f"{without}: no GPU work in it, as the other trace has")
    matched = matched_operators(whole_a.operators, whole_b.operators)
    works, spread = _works(a, b)
    timing = time_ratio(a.jobs, b.jobs, works, spread)
    work = _units(a, b, works, timing)
    like = likeness(matched, whole_a, whole_b, work or 1.0)
    verdict = _verdict(timing, like, threshold)
    matters = threshold * sum(one.times.total_us for one in whole_a.operators.values())
    scaled = _Scale(work=work or 1.0, matters_us=matters)
    judged = timing if verdict != "not comparable" else None
    idle = (whole_a.idle_us, whole_b.idle_us)
    return TraceComparison(
        file_a=whole_a.file, file_b=whole_b.file, rank=whole_b.rank, by=by,
        measured="GPU time" if whole_a.on_gpu else "host time",
        verdict=verdict,
        ratio=judged.ratio if judged else None,
        low=judged.low if judged else None,
        high=judged.high if judged else None,
        scale=judged.scale if judged else None,
        work_ratio=work,
        same_operators_share=like.operators,
        same_order_share=like.order,
        same_inputs_share=like.inputs,
        idle_a_us=idle[0], idle_b_us=idle[1],
        summary=_summary(verdict, judged, like, idle),
        operators=[] if by == "kernel" else _sorted(_operator_row(row, scaled) for row in matched),
        kernels=_sorted(_named_rows(whole_a.kernels, whole_b.kernels, scaled)),
        classes=_sorted(_named_rows(whole_a.classes, whole_b.classes, scaled)),
        warnings=_warnings(whole_a, whole_b, like),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """How rows of the two sides are held against each other."""

    work: float
    """Work in B over work in A."""
    matters_us: float
    """The smallest change that matters."""


# -- how much work there is ------------------------------------------------------------------------


def _works(a: JobRepeats, b: JobRepeats) -> tuple[tuple[Floats, Floats], float | None]:
    """The work in each run over that in the first of A, and how far the ratios may be off."""
    first = joint_times(a.jobs[0])
    spreads: list[float | None] = []
    works = []
    for side in (a, b):
        own = []
        for job in side.jobs:
            ratio, spread = _work_ratio(first, joint_times(job))
            own.append(ratio or 1.0)
            spreads.append(spread)
        works.append(np.array(own))
    known = [spread for spread in spreads if spread is not None and spread <= _SAME_COUNTS]
    return (works[0], works[1]), max(known) if len(known) == len(spreads) else None


def _units(
    a: JobRepeats, b: JobRepeats, works: Sequence[Floats], timing: TimeRatio | None
) -> float | None:
    """Work in all of B over work in all of A: profiler steps where those are compared."""
    steps = [sum(len(job[0].step_lengths_us) + 1 for job in side.jobs) for side in (a, b)]
    stepped = all(len(job[0].step_lengths_us) for side in (a, b) for job in side.jobs)
    if timing is not None and timing.scale != "window" and stepped:
        return steps[1] / steps[0]
    return float(works[1].sum() / works[0].sum())


def _work_ratio(a: RankTimes, b: RankTimes) -> tuple[float | None, float | None]:
    """Work in B over work in A, and its relative spread: within it lies four fifths of the time.

    By the calls of operators; by those of kernels where the launches tell too few operators.
    """
    told = [
        row
        for row in matched_operators(a.operators, b.operators)
        if not row.name.startswith(NO_OPERATOR)
    ]
    found = _ratio_of_calls(
        {row.name: row.a.times for row in told if row.a},
        {row.name: row.b.times for row in told if row.b},
        sum(own.times.total_us for side in (a, b) for own in side.operators.values()),
    )
    if found[0] is not None:
        return found
    whole = sum(own.total_us for side in (a, b) for own in side.kernels.values())
    return _ratio_of_calls(a.kernels, b.kernels, whole)


def _ratio_of_calls(
    a: Mapping[str, WorkTimes], b: Mapping[str, WorkTimes], whole: float
) -> tuple[float | None, float | None]:
    shared = [name for name in a if name in b]
    weights = np.array([a[name].total_us + b[name].total_us for name in shared])
    if not shared or whole <= 0 or weights.sum() < 0.5 * whole:
        return None, None
    ratios = np.array([b[name].count / a[name].count for name in shared])
    middle = _weighted_quantile(ratios, weights, 0.5)
    return middle, _weighted_quantile(np.abs(ratios / middle - 1), weights, 0.8)


def _weighted_quantile(values: Floats, weights: Floats, quantile: float) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    at = int(np.searchsorted(reached, reached[-1] * quantile))
    return float(values[order][min(at, len(values) - 1)])


# -- verdict ---------------------------------------------------------------------------------------


def _verdict(timing: TimeRatio | None, like: WorkLikeness, threshold: float) -> str:
    if timing is None or like.other_work:
        return "not comparable"
    if timing.low is None or timing.high is None:
        return "cannot tell"
    if timing.low > 1 and timing.ratio > 1 + threshold:
        return "slower"
    if timing.high < 1 and timing.ratio < 1 - threshold:
        return "faster"
    alike = max(threshold, _ALIKE)
    return "same" if timing.low > 1 / (1 + alike) and timing.high < 1 + alike else "cannot tell"


def _summary(
    verdict: str, timing: TimeRatio | None, like: WorkLikeness, idle_us: tuple[float, float]
) -> str:
    if verdict == "not comparable" or timing is None:
        what = "inputs of other sizes" if like.other_work else "other kernels and operators"
        return f"Not comparable as a whole: different work, with {what}."
    waits = (
        f"idle {quantity.microseconds(idle_us[0])} in A, {quantity.microseconds(idle_us[1])} in B."
    )
    what = "For the same work" if timing.scale == "window" else "Per step"
    if timing.low is None or timing.high is None:
        return (
            f"Cannot tell: for the same work B took {timing.ratio:.3f} times A's time, and too "
            f"little recurs in these traces to say how much of that is noise; {_ADVICE}; {waits}"
        )
    found = f"{timing.ratio:.3f} times A's time [{timing.low:.3f}, {timing.high:.3f}]"
    if verdict == "cannot tell":
        return f"Cannot tell: {what.lower()} B took {found}, within noise; {_ADVICE}; {waits}"
    word = {"slower": "is slower", "faster": "is faster", "same": "takes the same time"}[verdict]
    return f"{what} B {word}: {found}; {waits}"


def _warnings(a: RankTimes, b: RankTimes, like: WorkLikeness) -> list[str]:
    """What is not the same work on both sides."""
    found = []
    if a.device != b.device and a.device and b.device:
        found.append(f"A ran on {a.device}, B on {b.device}")
    if like.operators is not None and like.operators < 1 - _SAME_COUNTS:
        found.append(
            f"different work: only {quantity.percent(like.operators)} of the time is of operators "
            "that both sides have; classes of kernels still compare"
        )
    elif like.order is not None and like.order < 1 - _SAME_COUNTS:
        found.append(
            f"different work: only {quantity.percent(like.order)} of the operators follow the same "
            "one on both sides"
        )
    if like.inputs is not None and like.other_inputs:
        found.append(
            f"different work: {quantity.percent(1 - like.inputs)} of the time is of operators with "
            f"inputs of other sizes; {like.other_inputs[0]}"
        )
    return found


# -- rows ------------------------------------------------------------------------------------------


def _operator_row(row: MatchedWork, scale: _Scale) -> ComparedRow:
    a, b = (side.times if side else _NEVER for side in (row.a, row.b))
    kernels = [_longest(side.kernels) if side else [] for side in (row.a, row.b)]
    return _row(row.name, a, b, scale, kernels)


def _longest(kernels: Mapping[str, float]) -> list[str]:
    return sorted(kernels, key=lambda name: -kernels[name])[:_MOST_KERNELS]


def _named_rows(
    a: Mapping[str, WorkTimes], b: Mapping[str, WorkTimes], scale: _Scale
) -> list[ComparedRow]:
    return [
        _row(name, a.get(name, _NEVER), b.get(name, _NEVER), scale, ([], [])) for name in {**a, **b}
    ]


def _row(
    name: str, a: WorkTimes, b: WorkTimes, scale: _Scale, kernels: Sequence[list[str]]
) -> ComparedRow:
    total_b = b.total_us / scale.work
    change = total_b - a.total_us
    low = high = None
    if a.count and b.count and a.error and b.error:
        error = joint_error((a.error.over(a.count), b.error.over(b.count)))
        assert error is not None
        low = b.mean_us - a.mean_us - error.reach_us
        high = b.mean_us - a.mean_us + error.reach_us
    calls_b = b.count / scale.work
    return ComparedRow(
        name=name, status=_status(a.count, calls_b, low, high, abs(change) > scale.matters_us),
        calls_a=a.count, calls_b=b.count, total_a_us=a.total_us, total_b_us=total_b,
        ratio=total_b / a.total_us if a.count and b.count and a.total_us > 0 else None,
        mean_a_us=a.mean_us, mean_b_us=b.mean_us, low_us=low, high_us=high, change_us=change,
        kernels_a=kernels[0], kernels_b=kernels[1],
    )  # fmt: skip


def _sorted(rows: Iterable[ComparedRow]) -> list[ComparedRow]:
    return sorted(rows, key=lambda row: (-abs(row.change_us), -row.total_a_us, row.name))


def _status(
    calls_a: float, calls_b: float, low: float | None, high: float | None, matters: bool
) -> str:
    if not calls_a or not calls_b:
        return "gone" if calls_a else "new"
    if not matters:
        return "same"
    if calls_b > 1.1 * calls_a:
        return "more calls"
    if calls_b < 0.9 * calls_a:
        return "fewer calls"
    if low is None or high is None:
        return "cannot tell"
    if low > 0:
        return "slower"
    return "faster" if high < 0 else "same"
