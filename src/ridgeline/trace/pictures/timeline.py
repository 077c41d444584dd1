"""A trace small enough to draw: counters per slice of time, and tracks within a budget of slices.

Two thirds of the budget go to one stretch of time in which every event has a slice,
the rest to all other time, in which neighbours are joined (`timeline_tracks.py`).

That stretch is one step of median length, or a like one: a page cannot hold every event of a long
trace. One step holds what the others repeat: the profiler step of median length, else the iteration
that the program's own annotations name. Where there is neither, or the step has more events than
the budget, the time is cut into equal parts, and the part with the median share of GPU work that
fits is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Floats, Trace
from ridgeline.trace.critical_path.path import PathPiece
from ridgeline.trace.host_calls import launch_rows
from ridgeline.trace.intervals import covered, union
from ridgeline.trace.kernel_names import is_communication, short_name
from ridgeline.trace.pictures.timeline_tracks import (
    Kinds,
    Track,
    TrackEvents,
    drawn_track,
    path_events,
    stream_events,
    thread_events,
    touching,
)
from ridgeline.trace.profiler_steps import profiler_steps
from ridgeline.trace.sorting import first_places
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
    talking = covered(union(gpu.start_us[talks], gpu.ends_of(talks)), edges[:-1], edges[1:]) / width
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
    first = first_places(rows[known])
    launched = np.sort(trace.host.start_us[rows[known[first]]])
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
JOINED = "joined"
_LONGEST_NAME = 90
_LEAST_PER_TRACK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTimeline:
    """The picture of one trace."""

    start_us: float
    end_us: float
    tracks: list[Track]
    names: list[str]
    """Names of slices and operators."""
    kinds: list[str]
    """The kinds of slices: classes of kernels, categories of the host, `joined`."""
    detail: DetailStretch | None
    """Where every event has its own slice, also where others do not; the median step, if any."""
    busy_percent: list[int]
    """GPU busy per slice of time, whole percents."""
    events: int
    merged: int


def timeline(trace: Trace, path: Sequence[PathPiece], budget: int) -> TraceTimeline:
    """Tracks for the critical path, each stream and the busiest host threads, within a budget."""
    start, end = span_us(trace)
    kinds, names = Kinds(), {name: place for place, name in enumerate(trace.names)}
    every = path_events(path, kinds, names)
    every += stream_events(trace, kinds) + thread_events(trace, kinds)
    whole = sum(map(len, every))
    if whole <= budget:
        detail, stretch = median_step(trace), (start, np.inf)
    else:
        detail = _detail(trace, every, 2 * budget // 3)
        stretch = detail.start_us, detail.end_us
    inside = sum(int(touching(events, stretch).sum()) for events in every)
    rest = max(0, budget - inside) / max(1, whole - inside)
    on_path = np.zeros(len(trace.gpu), bool)
    on_path[[piece.gpu_event for piece in path if piece.gpu_event is not None]] = True
    least, joined = (end - start) / RESOLUTION, kinds(JOINED)
    tracks = [
        drawn_track(
            trace, events, stretch, max(_LEAST_PER_TRACK, round(rest * len(events))), least, joined,
            on_path,
        )
        for events in every
    ]  # fmt: skip
    shown, tracks = _names(list(names), tracks)
    busy = counters(trace, COUNTER_SLICES).busy if len(trace.gpu) else np.zeros(0)
    return TraceTimeline(
        start_us=start,
        end_us=end,
        tracks=tracks,
        names=shown,
        kinds=kinds.names,
        detail=detail,
        busy_percent=[round(value) for value in (busy * 100).tolist()],
        events=whole,
        merged=sum(track.merged for track in tracks),
    )


def _detail(trace: Trace, every: Sequence[TrackEvents], budget: int) -> DetailStretch:
    starts = np.sort(np.concatenate([events.start_us for events in every]), kind="stable")
    return detail_stretch(trace, starts, budget)


def _names(known: Sequence[str], tracks: Sequence[Track]) -> tuple[list[str], list[Track]]:
    """The names that are drawn, shortened, and the tracks with indices into these."""
    used = np.zeros(len(known) + 1, bool)
    for track in tracks:
        used[track.label] = used[track.operator] = True
    used[ABSENT] = False
    shown: dict[str, int] = {}
    places = np.full(len(used), ABSENT, np.int64)
    for index in np.flatnonzero(used).tolist():
        places[index] = shown.setdefault(short_name(known[index])[:_LONGEST_NAME], len(shown))
    return list(shown), [
        replace(track, label=places[track.label], operator=places[track.operator])
        for track in tracks
    ]


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
