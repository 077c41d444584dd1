"""How much launched work waits on each stream, over time: `queue_lengths(trace)`.

The length of a stream's queue is launches minus starts; a graph launch is one entry, however many
kernels it carries. The series has a bounded number of points, each with the mean and the highest
length in its stretch of time. CUDA takes 1,024 launches that have not started; the next call blocks
until one has, so time at that length is time in which the host could not run ahead.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Floats, Trace
from ridgeline.trace.host_calls import launch_rows
from ridgeline.trace.sorting import distinct
from ridgeline.trace.windows import GpuRecord, View, views

FULL = 1024
"""Launches that a queue takes: what HolisticTraceAnalysis reckons with, and was seen on CUDA."""
_BEYOND = 1.125
"""A queue that was longer than so many times the limit has another one."""
POINTS = 120
"""Points of a series: enough for a picture."""


class QueueSeries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The queue of one stream over time."""

    stream: int
    launches: int
    mean_length: float
    """Over the time of the series."""
    max_length: int
    full_us: float | None
    """Time with 1,024 launches or more waiting: the host is blocked when it launches another. None
    where far more than that were waiting, so that the queue takes more (HIP's does)."""
    full_share: float | None
    """The share of the series' time that `full_us` is."""
    start_us: float
    """When the series begins."""
    interval_us: float
    """How long each point of the series stands for."""
    mean_lengths: list[float]
    """The mean in each stretch of time."""
    max_lengths: list[int]
    """The highest in each stretch of time."""


class RankQueues(GpuRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The queues of one GPU's streams."""

    queues: list[QueueSeries]
    """Streams whose launches are in the trace, the longest queue first."""


class QueueChanges(NamedTuple):
    """How long a stream's queue is from each moment on."""

    times_us: Floats
    """In order; at one moment starts come before launches, for what they free was there before."""
    change: Floats
    """One for a launch, minus one for a start."""
    length: Floats
    """The length after the change."""


def queue_lengths(trace: Trace, window: str = "trace") -> list[RankQueues]:
    """The queue of each stream of each GPU."""
    return [_queues_of(view) for view in views(trace, window)]


def queue_changes(view: View, stream: int) -> QueueChanges | None:
    """When the queue of a stream grows and shrinks; None where no launch is in the trace."""
    trace, gpu = view.trace, view.trace.gpu
    rows = view.rows[gpu.stream[view.rows] == stream]
    calls = launch_rows(trace)[rows]
    rows, calls = rows[calls != ABSENT], calls[calls != ABSENT]
    if not len(rows):
        return None
    used = distinct(calls)
    order = np.argsort(calls, kind="stable")  # rows are by start: the first of a graph
    first = order[np.searchsorted(calls[order], used)]
    launched, started = trace.host.start_us[used], gpu.start_us[rows[first]]
    times = np.concatenate([launched, started])
    changes = np.concatenate([np.ones(len(launched)), -np.ones(len(started))])
    order = np.lexsort((changes, times))
    return QueueChanges(times[order], changes[order], np.cumsum(changes[order]))


def _queues_of(view: View) -> RankQueues:
    streams = distinct(view.trace.gpu.stream[view.rows]).tolist()
    found = {
        stream: changes
        for stream in streams
        if (changes := queue_changes(view, stream)) is not None
    }
    start = view.start_us
    if view.window == "trace":
        start = min([start, *(float(changes.times_us[0]) for changes in found.values())])
    queues = [_series(stream, one, start, view.end_us) for stream, one in found.items()]
    queues.sort(key=lambda queue: (-queue.max_length, queue.stream))
    return RankQueues(**view.head(), queues=queues)


def _series(stream: int, changes: QueueChanges, start: float, end: float) -> QueueSeries:
    """The series between two moments, in equal stretches of time."""
    # A negative length is a start whose launch the clocks put behind it.
    times, length = changes.times_us, np.maximum(changes.length, 0.0)
    edges = np.linspace(start, max(end, start), POINTS + 1)
    upto = np.clip(np.append(times, edges[-1]), start, edges[-1])
    lasting = np.diff(upto)
    area = np.append(0.0, np.cumsum(length * lasting))
    interval = float(edges[1] - edges[0])
    sums = np.diff(np.interp(edges, upto, area, left=0.0))
    highest = np.zeros(POINTS)
    inside = np.flatnonzero((times >= start) & (times < edges[-1]))
    if interval > 0:
        places = ((times[inside] - start) / interval).astype(np.int64)
        np.maximum.at(highest, np.minimum(places, POINTS - 1), length[inside])
        before = np.searchsorted(times, edges[:-1], "right") - 1
        highest = np.maximum(highest, np.where(before >= 0, length[before], 0.0))
    whole = float(edges[-1] - edges[0])
    full = float(lasting[length >= FULL].sum()) if highest.max() <= _BEYOND * FULL else None
    return QueueSeries(
        stream=stream,
        launches=int((changes.change > 0).sum()),
        mean_length=float(area[-1]) / whole if whole > 0 else 0.0,
        max_length=int(highest.max()),
        full_us=full,
        full_share=None if full is None else full / whole if whole > 0 else 0.0,
        start_us=start,
        interval_us=interval,
        mean_lengths=(sums / interval).tolist() if interval > 0 else [0.0] * POINTS,
        max_lengths=highest.astype(int).tolist(),
    )
