"""The part of a trace that is drawn event by event: one step of median length, or a like stretch.

A page cannot hold every event of a long trace. One step holds what the others repeat: the profiler
step of median length, else the iteration that the program's own annotations name. Where there is
neither, or the step has more events than the budget, the time is cut into equal parts, and the part
with the median share of GPU work that fits is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import Category, Floats, Trace
from ridgeline.trace.intervals import covered, union
from ridgeline.trace.profiler_steps import profiler_steps
from ridgeline.trace.windows import span_us

PARTS = 10
"""A trace without steps is cut into at least so many parts."""
_MOST_PARTS = 1 << 16
_FEWEST_STEPS = 3
_LEAST_COVERED = 0.5
"""Iterations cover so much of the time from the first to the last."""
_ITERATION = re.compile(
    r"(?i)^(?!.*optimizer)(.*[^a-z])?(step|iter|iteration|batch|microbatch|frame)([^a-z]|$)"
)
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailStretch:
    """A stretch of time in which every event has a slice of its own."""

    start_us: float
    end_us: float
    name: str
    """What the stretch is called, as `ProfilerStep#5, of median length`."""
    is_step: bool
    """Is it a whole step or iteration?"""


def detail_stretch(trace: Trace, starts_us: Floats, budget: int) -> DetailStretch:
    """Choose the stretch to draw in full.

    Args:
        trace: the trace.
        starts_us: when each event that would be drawn starts, in order.
        budget: the most events that the stretch may hold.
    """
    step = median_step(trace)
    low, high = span_us(trace)
    if step is None:
        return _like_the_whole(trace, (low, high), "the trace", starts_us, budget, PARTS)
    if _count(starts_us, np.array([step.start_us, step.end_us]))[0] <= budget:
        return step
    return _like_the_whole(
        trace, (step.start_us, step.end_us), step.name, starts_us, budget, parts=2
    )


def median_step(trace: Trace) -> DetailStretch | None:
    """The step of median length; None where the trace has neither steps nor iterations."""
    steps = profiler_steps(trace)
    if steps:
        starts = np.array([step.start_us for step in steps])
        ends = np.append(starts[1:], steps[-1].end_us)
        whole = len(steps) - 1 or 1
        chosen = _middle(ends[:whole] - starts[:whole])
        name = steps[chosen].name
        return _step(name, starts[chosen], ends[chosen], several=whole > 1)
    iterations = list(_iterations(trace))
    if not iterations:
        return None
    rows = min(iterations, key=len)
    host = trace.host
    chosen = int(rows[_middle(host.duration_us[rows])])
    name, start = trace.names[host.name[chosen]], host.start_us[chosen]
    return _step(name, start, start + host.duration_us[chosen], several=True)


def _step(name: str, start: float, end: float, *, several: bool) -> DetailStretch:
    said = f"{name}, of median length" if several else name
    return DetailStretch(start_us=float(start), end_us=float(end), name=said, is_step=True)


def _iterations(trace: Trace) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Rows of annotations that name an iteration: the same words but for numbers, in turn."""
    families: dict[str, list[int]] = {}
    for index, name in enumerate(trace.names):
        if _ITERATION.match(name.replace("_", " ")):
            families.setdefault(_DIGITS.sub("#", name), []).append(index)
    host = trace.host
    marks = np.flatnonzero(host.category == Category.ANNOTATION) if families else np.zeros(0, int)
    for family in families.values():
        rows = marks[np.isin(host.name[marks], family)]
        rows = rows[np.argsort(host.start_us[rows], kind="stable")]
        if len(rows) < _FEWEST_STEPS:
            continue
        starts, lengths = host.start_us[rows], host.duration_us[rows]
        ends = starts + lengths
        covers = lengths.sum() >= _LEAST_COVERED * (ends[-1] - starts[0])
        if covers and (starts[1:] >= ends[:-1]).all():
            yield rows


def _like_the_whole(
    trace: Trace,
    window: tuple[float, float],
    name: str,
    starts_us: Floats,
    budget: int,
    parts: int,
) -> DetailStretch:
    """The part of a window that fits and whose GPU is as busy as it is in the median part."""
    gpu = trace.gpu
    work = union(gpu.start_us, gpu.end_us)
    while True:
        edges = np.linspace(*window, parts + 1)
        busy = covered(work, edges[:-1], edges[1:])
        order = np.argsort(busy, kind="stable")
        nearest = order[np.argsort(np.abs(np.arange(parts) - (parts - 1) // 2), kind="stable")]
        fits = nearest[_count(starts_us, edges)[nearest] <= budget]
        if len(fits) or parts >= _MOST_PARTS:
            chosen = int((fits if len(fits) else nearest)[0])
            said = f"1/{parts} of {name}, the part whose GPU is as busy as in the median one"
            return DetailStretch(
                start_us=float(edges[chosen]), end_us=float(edges[chosen + 1]), name=said,
                is_step=False,
            )  # fmt: skip
        parts *= 2


def _count(starts_us: Floats, edges: Floats) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """How many events start between each pair of edges."""
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = np.diff(np.searchsorted(starts_us, edges))
    return found


def _middle(lengths: Floats) -> int:
    """The place of the value that is, or is just below, the median."""
    return int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])
