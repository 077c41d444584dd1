"""A trace small enough to draw: counters per slice of time, and tracks within a budget of slices.

What a screen cannot show is merged aloud: within a track the longest events keep their own slice;
the others are joined with their neighbours, where the gap between them is below the resolution,
into slices that say how many events they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Trace
from ridgeline.trace.critical_path.path import PathPiece
from ridgeline.trace.host_calls import launch_rows, rows_by_start
from ridgeline.trace.intervals import covered, union
from ridgeline.trace.kernel_names import (
    KERNEL_CLASSES,
    is_communication,
    kernel_classes,
    short_name,
)
from ridgeline.trace.sorting import each
from ridgeline.trace.windows import span_us


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineCounters:
    """Values per slice; `edges_us` has one more."""

    edges_us: Floats
    busy: Floats
    """Share of the slice, 0 … 1."""
    communication: Floats
    queue_depth: Floats
    """Launched and not yet started, at the start of the slice; a graph launch is one entry."""
    memory_bytes: Floats | None
    """Allocated on GPUs, as last noted before the slice's end; None without memory events."""


def counters(trace: Trace, slices: int) -> TimelineCounters:
    """The counters between the first event and the last."""
    start, end = span_us(trace)
    edges = np.linspace(start, max(end, start + 1e-3), slices + 1)
    gpu = trace.gpu
    width = edges[1:] - edges[:-1]
    talks = is_communication(trace)
    busy = covered(union(gpu.start_us, gpu.end_us), edges[:-1], edges[1:]) / width
    talking = covered(union(gpu.start_us[talks], gpu.end_us[talks]), edges[:-1], edges[1:]) / width
    return TimelineCounters(
        edges_us=edges,
        busy=busy,
        communication=talking,
        queue_depth=_depth(trace, edges[:-1]),
        memory_bytes=_memory(trace, edges[1:]),
    )


def _depth(trace: Trace, moments: Floats) -> Floats:
    rows = launch_rows(trace)
    known = np.flatnonzero(rows != ABSENT)
    calls, first = np.unique(rows[known], return_index=True)
    launched = np.sort(trace.host.start_us[calls])
    started = np.sort(trace.gpu.start_us[known[first]])
    depth = np.searchsorted(launched, moments, "right") - np.searchsorted(started, moments, "right")
    found: Floats = np.maximum(depth, 0).astype(float)
    return found


def _memory(trace: Trace, moments: Floats) -> Floats | None:
    memory = trace.memory
    rows = np.flatnonzero((memory.device_type != 0) & (memory.allocated_bytes != ABSENT))
    if not len(rows):
        return None
    rows = rows[np.argsort(memory.time_us[rows], kind="stable")]
    at = np.searchsorted(memory.time_us[rows], moments, "right") - 1
    values: Floats = memory.allocated_bytes[rows][np.maximum(at, 0)].astype(float)
    return values


RESOLUTION = 5000
"""Slices of the whole span below which gaps are not drawn."""
COUNTER_SLICES = 600
HOST_LEVELS = 4
_LONGEST_NAME = 90

Slice = tuple[float, float, int, str, int]
"""Start, duration, level, kind, index of the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One line of the picture; `levels` high."""

    name: str
    levels: int
    slices: list[Slice]
    merged: int
    """Events that have no slice of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTimeline:
    """The picture of one trace."""

    start_us: float
    end_us: float
    tracks: list[Track]
    names: list[str]
    busy_percent: list[int]
    """GPU busy per slice of time, whole percents."""
    events: int
    merged: int


def timeline(trace: Trace, path: Sequence[PathPiece], budget: int) -> TraceTimeline:
    """Tracks for the critical path, each stream and the busiest host threads, within a budget."""
    start, end = span_us(trace)
    names: dict[str, int] = {}
    rows: list[tuple[str, Floats, Floats, Ints, list[str], list[str]]] = []
    if path:
        rows.append((
            "critical path", np.array([piece.start_us for piece in path]),
            np.array([piece.duration_us for piece in path]), np.zeros(len(path), np.int64),
            [piece.kind for piece in path], [piece.name for piece in path],
        ))  # fmt: skip
    rows += _streams(trace)
    rows += _threads(trace)
    whole = sum(len(row[1]) for row in rows) or 1
    least = (end - start) / RESOLUTION
    tracks = []
    for name, starts, durations, levels, kinds, labels in rows:
        own = max(100, round(budget * len(starts) / whole))
        tracks.append(_track(name, (starts - start, durations, levels), (kinds, labels), own, least,
                             names))  # fmt: skip
    busy = counters(trace, COUNTER_SLICES).busy if len(trace.gpu) else np.zeros(0)
    return TraceTimeline(
        start_us=start,
        end_us=end,
        tracks=tracks,
        names=list(names),
        busy_percent=[round(value) for value in (busy * 100).tolist()],
        events=sum(len(row[1]) for row in rows),
        merged=sum(track.merged for track in tracks),
    )


Row = tuple[str, Floats, Floats, Ints, list[str], list[str]]


def _streams(trace: Trace) -> list[Row]:
    gpu = trace.gpu
    classes = kernel_classes(trace)
    found: list[Row] = []
    for device in np.unique(gpu.device).tolist():
        for stream in np.unique(gpu.stream[gpu.device == device]).tolist():
            rows = np.flatnonzero((gpu.device == device) & (gpu.stream == stream))
            found.append((
                f"GPU {device} stream {stream}", gpu.start_us[rows], gpu.duration_us[rows],
                np.zeros(len(rows), np.int64), [KERNEL_CLASSES[c] for c in classes[rows].tolist()],
                [trace.names[name] for name in gpu.name[rows].tolist()],
            ))  # fmt: skip
    return found


def _threads(trace: Trace) -> list[Row]:
    """The threads with most events, each with the outermost levels of what it did.

    Frames of Python are for the flame graph: their outermost levels say only how the program began.
    """
    host = trace.host
    drawn = host.category != Category.PYTHON
    if not drawn.any():
        return []
    threads, counts = np.unique(host.thread[drawn], return_counts=True)
    found: list[Row] = []
    for thread in threads[np.argsort(-counts)][:4].tolist():
        rows = rows_by_start(trace, thread)
        rows = rows[drawn[rows]]
        level = _levels(host.start_us[rows], host.duration_us[rows])
        rows, level = rows[level < HOST_LEVELS], level[level < HOST_LEVELS]
        name = trace.thread_names.get(thread, "thread")
        words = {code.value: code.name.lower() for code in Category}
        kinds = [words[code] for code in each(host.category[rows])]
        found.append((
            f"{name} {trace.threads[thread][1]}", host.start_us[rows], host.duration_us[rows],
            level, kinds, [trace.names[index] for index in each(host.name[rows])],
        ))  # fmt: skip
    return found


def _levels(starts: Floats, durations: Floats) -> Ints:
    """Depth of nesting of each event."""
    level = np.zeros(len(starts), np.int64)
    ends: list[float] = []
    for index, (start, duration) in enumerate(zip(each(starts), each(durations), strict=True)):
        while ends and ends[-1] <= start:
            ends.pop()
        level[index] = len(ends)
        ends.append(start + duration)
    return level


def _track(
    name: str,
    columns: tuple[Floats, Floats, Ints],
    texts: tuple[list[str], list[str]],
    budget: int,
    least_us: float,
    names: dict[str, int],
) -> Track:
    starts, durations, levels = columns
    kinds, labels = texts
    count = len(starts)
    kept = np.ones(count, bool)
    if count > budget:
        kept[:] = False
        kept[np.argsort(-durations, kind="stable")[: budget // 2]] = True
    slices: list[Slice] = [
        (round(float(starts[row]), 2), round(float(durations[row]), 2), int(levels[row]),
         kinds[row], _number(names, short_name(labels[row])[:_LONGEST_NAME]))
        for row in np.flatnonzero(kept).tolist()
    ]  # fmt: skip
    rest = np.flatnonzero(~kept)
    for level in np.unique(levels[rest]).tolist():
        own = rest[levels[rest] == level]
        room = max(1, budget // (2 * max(1, len(np.unique(levels[rest])))))
        slices += _merged(starts[own], durations[own], level, least_us, room, names)
    slices.sort(key=lambda one: one[0])
    return Track(
        name=name,
        levels=int(levels.max()) + 1 if count else 1,
        slices=slices,
        merged=len(rest),
    )


def _merged(
    starts: Floats, durations: Floats, level: int, least_us: float, room: int, names: dict[str, int]
) -> list[Slice]:
    """Neighbours as one slice each; where these are still too many, coarser."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate((starts + durations)[order])
    while True:
        first = np.concatenate(([True], starts[1:] - ends[:-1] > least_us))
        heads = np.flatnonzero(first)
        if len(heads) <= room:
            break
        least_us *= 2
    tails = np.append(heads[1:], len(starts)) - 1
    sizes = tails - heads + 1
    return [
        (round(float(starts[head]), 2), round(float(ends[tail] - starts[head]), 2), level, "merged",
         _number(names, f"{size} short events"))
        for head, tail, size in zip(heads.tolist(), tails.tolist(), sizes.tolist(), strict=True)
    ]  # fmt: skip


def _number(names: dict[str, int], name: str) -> int:
    return names.setdefault(name, len(names))
