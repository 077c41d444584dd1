"""Arithmetic on sets of intervals [start, end), vectorised and exact.

A set is a pair of arrays (starts, ends), sorted, without overlaps and without empty members:
`union` makes one of any intervals. Everything that a trace is asked for (busy, idle, exposed,
overlapped) is a measure of unions, intersections and differences of such sets.

    busy = union(gpu.start_us, gpu.end_us)
    idle_us = window_us - measure(busy)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ridgeline.trace.columns import Floats, Ints


class Intervals(NamedTuple):
    """Sorted, disjoint, non-empty intervals."""

    start: Floats
    end: Floats

    @property
    def size(self) -> int:
        """How many there are; `len` is that of a pair."""
        return len(self.start)


NOTHING = Intervals(np.zeros(0), np.zeros(0))


def union(start: Floats, end: Floats) -> Intervals:
    """The set that any intervals cover; touching ones become one.

    >>> union(np.array([5.0, 0.0, 1.0]), np.array([6.0, 2.0, 5.0]))
    Intervals(start=array([0.]), end=array([6.]))
    """
    if len(start) == 0:
        return NOTHING
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.empty(len(start), bool)
    first[0] = True
    np.greater(start[1:], reach[:-1], out=first[1:])
    heads = np.flatnonzero(first)
    starts = start[heads]
    ends = reach[np.append(heads[1:], len(start)) - 1]
    filled = ends > starts
    return Intervals(starts[filled], ends[filled])


def measure(intervals: Intervals) -> float:
    """The total length of a set.

    >>> measure(union(np.array([0.0, 1.0]), np.array([2.0, 4.0])))
    4.0
    """
    return float(np.sum(intervals.end - intervals.start))


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """What lies in both.

    >>> a = union(np.array([0.0]), np.array([5.0]))
    >>> b = union(np.array([1.0, 4.0]), np.array([2.0, 9.0]))
    >>> intersection(a, b)
    Intervals(start=array([1., 4.]), end=array([2., 5.]))
    """
    if not a.size or not b.size:
        return NOTHING
    low = np.searchsorted(b.end, a.start, "right")
    high = np.searchsorted(b.start, a.end, "left")
    rows, partners = pairs(low, high)
    return Intervals(
        np.maximum(a.start[rows], b.start[partners]), np.minimum(a.end[rows], b.end[partners])
    )


def gaps(intervals: Intervals, start: float, end: float) -> Intervals:
    """What the set leaves free between `start` and `end`.

    >>> gaps(union(np.array([1.0]), np.array([2.0])), 0.0, 3.0)
    Intervals(start=array([0., 2.]), end=array([1., 3.]))
    """
    if end <= start:
        return NOTHING
    inside = clipped(intervals, start, end)
    starts, ends = np.append(start, inside.end), np.append(inside.start, end)
    free = ends > starts
    return Intervals(starts[free], ends[free])


def difference(a: Intervals, b: Intervals) -> Intervals:
    """What lies in `a` and not in `b`.

    >>> difference(union(np.array([0.0]), np.array([5.0])), union(np.array([1.0]), np.array([2.0])))
    Intervals(start=array([0., 2.]), end=array([1., 5.]))
    """
    if not a.size or not b.size:
        return a
    return intersection(a, gaps(b, float(a.start[0]), float(a.end[-1])))


def clipped(intervals: Intervals, start: float, end: float) -> Intervals:
    """The part between `start` and `end`."""
    starts, ends = np.maximum(intervals.start, start), np.minimum(intervals.end, end)
    filled = ends > starts
    return Intervals(starts[filled], ends[filled])


def covered(intervals: Intervals, start: Floats, end: Floats) -> Floats:
    """How much of each query interval the set covers.

    >>> covered(union(np.array([1.0, 4.0]), np.array([3.0, 5.0])), np.array([0.0]), np.array([4.5]))
    array([2.5])
    """
    if not intervals.size:
        return np.zeros(len(start))
    corners = np.empty(2 * intervals.size)
    corners[0::2], corners[1::2] = intervals.start, intervals.end
    heights = np.zeros(2 * intervals.size)
    lengths = np.cumsum(intervals.end - intervals.start)
    heights[1::2] = lengths
    heights[2::2] = lengths[:-1]
    total: Floats = np.interp(end, corners, heights) - np.interp(start, corners, heights)
    return total


def pairs(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Row i with each number from `low[i]` up to `high[i]`, as two long columns.

    >>> pairs(np.array([0, 4]), np.array([2, 5]))
    (array([0, 0, 1]), array([0, 1, 4]))
    """
    counts = np.maximum(high - low, 0)
    rows = np.repeat(np.arange(len(low)), counts)
    offsets = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, low[rows] + offsets
