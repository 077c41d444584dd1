"""Events as tracks of slices: one per stream, per host thread and for the critical path.

Inside the stretch that is drawn in full every event is a slice. Elsewhere the longest keep theirs,
and the others are joined with their neighbours, where the gap between them is below the resolution,
into slices that say how many events they stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Mask, Trace
from ridgeline.trace.critical_path.path import PathPiece
from ridgeline.trace.host_calls import operators_at_launch, rows_by_start
from ridgeline.trace.kernel_names import KERNEL_CLASSES, kernel_classes
from ridgeline.trace.sorting import distinct

HOST_LEVELS = 4
"""Levels of nesting of a thread outside the stretch in full."""
DETAIL_LEVELS = 12
"""Levels of nesting of a thread inside the stretch in full."""
TrackRole: TypeAlias = Literal["path", "gpu", "host"]
_BLOCK = 1 << 15
MOST_STREAMS = 16
MOST_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackEvents:
    """Everything that a track could show, in order of start."""

    name: str
    role: TrackRole
    start_us: Floats
    duration_us: Floats
    level: npt.NDArray[np.int16]
    rows: Ints
    """The row of each event in the table that it is from."""
    describe: Callable[[Ints], tuple[Ints, Ints, Ints]]
    """Kind (an index into the timeline's kinds), name and correlation of some rows."""

    def __len__(self) -> int:
        return len(self.start_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One line of the picture, `levels` high; columns have a row per slice, joined ones first."""

    name: str
    role: TrackRole
    levels: int
    joined: int
    """So many first slices stand for several events each."""
    start_us: Floats
    duration_us: Floats
    level: Ints
    kind: Ints
    label: Ints
    """Index into the names of the timeline; ABSENT for joined slices."""
    correlation: Ints
    """The correlation of a GPU event or call; of a joined slice the number of its events."""
    operator: Ints
    """The operator that launched a GPU event, as an index into the names of the timeline."""
    critical: Ints
    """The slices, by number, that are GPU work on the critical path."""
    merged: int
    """Events that have no slice of their own: joined with neighbours, or too deep inside others."""

    def __len__(self) -> int:
        return len(self.start_us)


class Kinds:
    """Kinds of slices, numbered as they come."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str) -> int:
        """Return the number of a kind; a new one gets the next."""
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)


# -- what there is to show -------------------------------------------------------------------------


def path_events(
    pieces: Sequence[PathPiece], kinds: Kinds, names: dict[str, int]
) -> list[TrackEvents]:
    """The critical path as a track of its own; names that are not in `names` are added."""
    if not pieces:
        return []
    for piece in pieces:
        names.setdefault(piece.name, len(names))
    kind = np.array([kinds(piece.kind) for piece in pieces])
    label = np.array([names[piece.name] for piece in pieces])
    return [
        TrackEvents(
            name="critical path",
            role="path",
            start_us=np.array([piece.start_us for piece in pieces]),
            duration_us=np.array([piece.duration_us for piece in pieces]),
            level=np.zeros(len(pieces), np.int16),
            rows=np.arange(len(pieces)),
            describe=lambda rows: (kind[rows], label[rows], np.full(len(rows), ABSENT)),
        )
    ]


def stream_events(trace: Trace, kinds: Kinds) -> list[TrackEvents]:
    """The streams of each GPU."""
    gpu, classes = trace.gpu, kernel_classes(trace)
    codes = np.array([kinds(name) for name in KERNEL_CLASSES])

    def describe(rows: Ints) -> tuple[Ints, Ints, Ints]:
        return codes[classes[rows]], gpu.name[rows].astype(np.int64), gpu.correlation[rows]

    found = []
    for device in distinct(gpu.device).tolist():
        for stream in distinct(gpu.stream[gpu.device == device]).tolist():
            rows = np.flatnonzero((gpu.device == device) & (gpu.stream == stream))
            found.append(
                TrackEvents(
                    name=f"GPU {device} stream {stream}",
                    role="gpu",
                    start_us=gpu.start_us[rows],
                    duration_us=gpu.duration_us[rows],
                    level=np.zeros(len(rows), np.int16),
                    rows=rows,
                    describe=describe,
                )
            )
    return _busiest(found, MOST_STREAMS)


def thread_events(trace: Trace, kinds: Kinds) -> list[TrackEvents]:
    """The threads with most events, each with what it did, nested.

    Frames of Python are for the flame graph: their outermost levels say only how the program began.
    """
    host = trace.host
    drawn = host.category != Category.PYTHON
    codes = np.array([kinds(category.name.lower()) for category in Category])

    def describe(rows: Ints) -> tuple[Ints, Ints, Ints]:
        calls = np.where(host.is_call[rows], host.correlation[rows], ABSENT)
        return codes[host.category[rows]], host.name[rows].astype(np.int64), calls

    found = []
    for thread in distinct(host.thread[drawn]).tolist():
        rows = rows_by_start(trace, thread)
        rows = rows[drawn[rows]]
        level = nesting_levels(host.start_us[rows], host.duration_us[rows])
        rows, level = rows[level < DETAIL_LEVELS], level[level < DETAIL_LEVELS]
        found.append(
            TrackEvents(
                name=_thread_name(trace, thread),
                role="host",
                start_us=host.start_us[rows],
                duration_us=host.duration_us[rows],
                level=level,
                rows=rows,
                describe=describe,
            )
        )
    return sorted(_busiest(found, MOST_THREADS), key=lambda one: -len(one))


def _thread_name(trace: Trace, thread: int) -> str:
    number, name = str(trace.threads[thread][1]), trace.thread_names.get(thread, "thread")
    return name if number in name else f"{name} {number}"


def _busiest(found: list[TrackEvents], most: int) -> list[TrackEvents]:
    """Keep the tracks with most events, in the order given."""
    least = sorted((len(one) for one in found), reverse=True)[:most]
    return [one for one in found if least and len(one) >= least[-1]][:most]


def nesting_levels(starts: Floats, durations: Floats) -> npt.NDArray[np.int16]:
    """How many spans are open around each; spans by start, of equals the longer first.

    >>> nesting_levels(np.array([0.0, 1.0, 2.0, 5.0]), np.array([9.0, 3.0, 1.0, 2.0])).tolist()
    [0, 1, 2, 1]
    """
    ends = np.maximum(starts + durations, np.nextafter(starts, np.inf))
    before = np.searchsorted(np.sort(ends, kind="stable"), starts, "right")
    level: npt.NDArray[np.int16] = (np.arange(len(starts)) - before).astype(np.int16)
    for each in range(int(level.max(initial=-1)) + 1):
        rows = level == each
        if (starts[rows][1:] < ends[rows][:-1]).any():
            return _levels_of_overlapping(starts, ends)
    return level


def _levels_of_overlapping(starts: Floats, ends: Floats) -> npt.NDArray[np.int16]:
    """The levels of spans that overlap without nesting: below everything that is still open."""
    level = np.zeros(len(starts), np.int16)
    open_until: list[float] = []
    for first in range(0, len(starts), _BLOCK):
        rows = slice(first, first + _BLOCK)
        spans = zip(starts[rows].tolist(), ends[rows].tolist(), strict=True)
        for index, (start, end) in enumerate(spans, start=first):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            level[index] = len(open_until)
            open_until.append(end)
    return level


# -- what is shown ---------------------------------------------------------------------------------


def drawn_track(
    trace: Trace,
    events: TrackEvents,
    stretch: tuple[float, float],
    budget: int,
    least_us: float,
    joined_kind: int,
    on_path: Mask,
) -> Track:
    """The slices of a track.

    Args:
        trace: the trace that the events are from.
        events: what there is.
        stretch: start and end of the time that is drawn in full, in microseconds.
        budget: slices for all the others.
        least_us: the gap below which neighbours are joined.
        joined_kind: the kind of joined slices.
        on_path: a mask over the GPU events.
    """
    full = touching(events, stretch)
    outside = np.flatnonzero(~full & (events.level < HOST_LEVELS))
    kept = full.copy()
    if len(outside) > budget:
        longest = np.argsort(-events.duration_us[outside], kind="stable")[: budget // 2]
        kept[outside[longest]] = True
        rest = outside[~kept[outside]]
    else:
        kept[outside] = True
        rest = outside[:0]
    joins = _joined(events, rest, stretch[0], budget - budget // 2, least_us)
    own = np.flatnonzero(kept)
    size, none = len(joins.start_us), np.full(len(joins.start_us), ABSENT)
    rows = events.rows[own]
    kind, label, correlation = events.describe(rows)
    on_gpu = events.role == "gpu"
    launched_by = _operators(trace, rows) if on_gpu else np.full(len(own), ABSENT)
    return Track(
        name=events.name,
        role=events.role,
        levels=int(max(events.level[own].max(initial=0), joins.level.max(initial=0))) + 1,
        joined=size,
        start_us=np.concatenate((joins.start_us, events.start_us[own])),
        duration_us=np.concatenate((joins.duration_us, events.duration_us[own])),
        level=np.concatenate((joins.level, events.level[own])),
        kind=np.concatenate((np.full(size, joined_kind), kind)),
        label=np.concatenate((none, label)),
        correlation=np.concatenate((joins.count, correlation)),
        operator=np.concatenate((none, launched_by)),
        critical=size + np.flatnonzero(on_path[rows]) if on_gpu else none[:0],
        merged=len(events) - len(own),
    )


def touching(events: TrackEvents, stretch: tuple[float, float]) -> Mask:
    """The events that run at some moment of a stretch, or lie in it without lasting."""
    start, end = stretch
    ends = events.start_us + events.duration_us
    found: Mask = (events.start_us < end) & ((ends > start) | (events.start_us >= start))
    return found


def _operators(trace: Trace, rows: Ints) -> Ints:
    """Name of the operator that each GPU event was launched from; ABSENT where there is none."""
    operators = operators_at_launch(trace)[rows]
    found = np.full(len(rows), ABSENT, np.int64)
    known = np.flatnonzero(operators != ABSENT)
    found[known] = trace.host.name[operators[known]]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joins:
    """Slices that stand for several events each."""

    start_us: Floats
    duration_us: Floats
    level: Ints
    count: Ints


def _joined(
    events: TrackEvents, rest: Ints, border_us: float, room: int, least_us: float
) -> _Joins:
    """Neighbours as one slice each, never across a border; coarser where they are too many."""
    if not len(rest):
        none = np.zeros(0, np.int64)
        return _Joins(start_us=np.zeros(0), duration_us=np.zeros(0), level=none, count=none)
    after = events.start_us[rest] >= border_us
    level = events.level[rest]
    order = np.lexsort((events.start_us[rest], after, level))
    rest, after, level = rest[order], after[order], level[order]
    starts = events.start_us[rest]
    border = np.ones(len(rest), bool)
    border[1:] = (level[1:] != level[:-1]) | (after[1:] != after[:-1])
    number = np.cumsum(border)
    # Ends grow within a stretch of one level: a later stretch is shifted above all before it.
    shift = number * (events.start_us[-1] - events.start_us[0] + events.duration_us.max() + 1.0)
    ends = np.maximum.accumulate(starts + events.duration_us[rest] + shift) - shift
    gaps = np.full(len(rest), np.inf)
    gaps[1:] = starts[1:] - ends[:-1]
    while True:
        heads = np.flatnonzero(border | (gaps > least_us))
        if len(heads) <= max(room, int(number[-1])):
            break
        least_us *= 2
    tails = np.append(heads[1:], len(rest)) - 1
    return _Joins(
        start_us=starts[heads],
        duration_us=ends[tails] - starts[heads],
        level=level[heads].astype(np.int64),
        count=tails - heads + 1,
    )
