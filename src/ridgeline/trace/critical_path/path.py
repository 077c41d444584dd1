"""The critical path of a job, and what a what-if would save.

From the last moment back along the binding edges of `dependencies.py`: the pieces of the path add
up to the window exactly. A what-if shortens every piece of some classes by a percentage and
recomputes each moment as the latest of its sources plus weights; nothing else moves, so another
edge may bind and the gain is smaller than the share on the path.

How much earlier a moment gets, with r the reduction of an edge and slack what it has to spare
(max-plus algebra; slack of the binding edge is 0, hence 0 % changes nothing):

    earlier(node) = min over edges of ( slack + earlier(source) + r · weight )

Ranks meet at collectives: a matched one ends on a rank once the last of all ranks has arrived and
the transfer is done. So a walk that comes to its end goes on at the start of the rank that arrived
last, and in a what-if its end waits for the latest of all starts, whoever that is then. A rank
brings only its walks and what a what-if needs (`rank_path.py`), not its trace.

    critical_path([trace])                         where the time of the window went
    critical_path([trace], {"gemm": 20.0})         and what 20 % shorter matmuls would bring
    job_path(paths)                                the same of what ranks brought
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.trace.columns import Trace
from ridgeline.trace.critical_path.joined_ranks import JoinedRanks, joined_ranks, shortened_end_us
from ridgeline.trace.critical_path.rank_path import KINDS, RankPath, Walks, rank_path
from ridgeline.trace.waits import NONE

WHAT_IF_CLASSES = KINDS
TOP = 30


class PathPart(msgspec.Struct, frozen=True, kw_only=True):
    """One class, or one name, on the path."""

    name: str
    kind: str
    """Class of kernel, or `host`, `launch`, `gap`, `wait`, `synchronise`."""
    us: float
    share: float
    """The share of the window."""
    pieces: int


class ShortenedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The same run with some classes shorter."""

    shortened: dict[str, float]
    """The classes that are shorter, each with the percentage."""
    window_us: float
    saved_us: float
    speedup: float


class PathPiece(msgspec.Struct, frozen=True, kw_only=True):
    """One step along the path, in time."""

    rank: int
    """Position of the trace in the input."""
    kind: str
    name: str
    start_us: float
    duration_us: float
    gpu_event: int | None
    """Row of the GPU table for pieces that ran on the GPU."""
    stream: int | None
    """The stream of a piece that ran on the GPU."""
    thread: int | None
    """The thread of a piece of the host."""


class CriticalPath(msgspec.Struct, frozen=True, kw_only=True):
    """What the window was spent on, moment by moment."""

    files: list[str]
    window_us: float
    start_us: float
    path_us: float
    """Sum of the pieces: the window."""
    classes: list[PathPart]
    names: list[PathPart]
    """The longest names, at most `TOP`."""
    ranks: dict[str, float]
    """Share of the path per rank; more than one only where collectives join them."""
    what_if: ShortenedRun | None
    warnings: list[str]


def critical_path(
    traces: Sequence[Trace], shorten: Mapping[str, float] | None = None
) -> CriticalPath:
    """The critical path over host threads, streams and ranks.

    Raises:
        InputError: a class that there is not, or a percentage outside 0 … 100.
    """
    check_classes(shorten or {})
    return job_path([rank_path(trace, shorten) for trace in traces], shorten)


def path_pieces(traces: Sequence[Trace]) -> list[PathPiece]:
    """The path in order of time; empty without GPU work."""
    return _pieces(joined_ranks([rank_path(trace) for trace in traces]))


def job_path(paths: Sequence[RankPath], shorten: Mapping[str, float] | None = None) -> CriticalPath:
    """The critical path from what ranks brought; `shorten` must be what they were asked with."""
    return path_and_pieces(paths, shorten)[0]


def path_and_pieces(
    paths: Sequence[RankPath], shorten: Mapping[str, float] | None = None
) -> tuple[CriticalPath, list[PathPiece]]:
    """The critical path, and its pieces in order of time."""
    joined = joined_ranks(paths)
    pieces = _pieces(joined)
    return _path(paths, joined, pieces, shorten), pieces


def _path(
    paths: Sequence[RankPath],
    joined: JoinedRanks,
    pieces: list[PathPiece],
    shorten: Mapping[str, float] | None,
) -> CriticalPath:
    files = [path.collectives.file for path in paths]
    if not pieces:
        nothing = "no GPU work in it: a critical path needs launches and GPU events"
        return CriticalPath(
            files=files, window_us=0.0, start_us=0.0, path_us=0.0, classes=[], names=[], ranks={},
            what_if=None, warnings=[*joined.warnings, nothing],
        )  # fmt: skip
    window = joined.end_us - joined.origin_us
    return CriticalPath(
        files=files,
        window_us=window,
        start_us=joined.origin_us,
        path_us=sum(piece.duration_us for piece in pieces),
        classes=_ranked(pieces, window, by_name=False),
        names=_ranked(pieces, window, by_name=True)[:TOP],
        ranks=_by_rank(paths, pieces, window),
        what_if=_what_if(joined, shorten) if shorten else None,
        warnings=list(joined.warnings),
    )


def job_pieces(paths: Sequence[RankPath]) -> tuple[list[PathPiece], tuple[float, ...]]:
    """The path in order of time, and what puts each rank on the common clock."""
    joined = joined_ranks(paths)
    return _pieces(joined), joined.shift_us


def check_classes(shorten: Mapping[str, float]) -> None:
    """Are these classes and percentages?"""
    for name, percent in shorten.items():
        if name not in WHAT_IF_CLASSES:
            known = ", ".join(WHAT_IF_CLASSES)
            raise InputError(f"--what-if {name}: no such class; there are {known}")
        if not 0 <= percent <= 100:
            raise InputError(f"--what-if {name}={percent:g}: a percentage from 0 to 100")


# -- the path -----------------------------------------------------------------------------------


def _pieces(joined: JoinedRanks) -> list[PathPiece]:
    if not joined.paths or not len(joined.paths[joined.last].walks):
        return []
    arrivals = _arrivals(joined)
    rank, node = joined.last, len(joined.paths[joined.last].walks) - 1
    columns = [_Columns(path.walks) for path in joined.paths]
    found = []
    while node != NONE:
        own, shift = columns[rank], joined.shift_us[rank]
        source_rank, source = arrivals.get((rank, node), (rank, own.source[node]))
        start = joined.origin_us
        if source != NONE:
            start = columns[source_rank].time_us[source] + joined.shift_us[source_rank]
        if own.time_us[node] + shift > start:
            found.append(own.piece(rank, node, start, own.time_us[node] + shift))
        rank, node = source_rank, source
    return found[::-1]


class _Columns:
    """The columns of walks as Python reads them quickest, one number at a time."""

    def __init__(self, walks: Walks) -> None:
        self.names = walks.names
        self.time_us, self.source = walks.time_us.data, walks.source.data
        self.kind, self.label = walks.kind.data, walks.label.data
        self.event, self.stream, self.thread = (
            walks.gpu_event.data, walks.stream.data, walks.thread.data,
        )  # fmt: skip

    def piece(self, rank: int, node: int, start: float, end: float) -> PathPiece:
        """What ends in the node."""
        event = self.event[node]
        on_gpu = event != NONE
        return PathPiece(
            rank=rank,
            kind=KINDS[self.kind[node]],
            name=self.names[self.label[node]],
            start_us=start,
            duration_us=end - start,
            gpu_event=event if on_gpu else None,
            stream=self.stream[node] if on_gpu else None,
            thread=None if on_gpu else self.thread[node],
        )


def _arrivals(joined: JoinedRanks) -> dict[tuple[int, int], tuple[int, int]]:
    """(Rank, end of a collective) → (rank that came last, its start)."""
    found = {}
    for meeting in joined.meetings:
        matched = meeting.matched
        last = int(np.argmax(matched.start_us))
        came = joined.paths[matched.positions[last]].walks
        target = (matched.positions[last], int(came.starts[meeting.events[last]]))
        for index, (position, event) in enumerate(
            zip(matched.positions, meeting.events, strict=True)
        ):
            end = int(joined.paths[position].walks.ends[event])
            if end != NONE and matched.end_us[index] > meeting.arrived_us:
                found[position, end] = target
    return found


def _ranked(pieces: Sequence[PathPiece], window: float, *, by_name: bool) -> list[PathPart]:
    totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0])
    for piece in pieces:
        entry = totals[piece.name if by_name else piece.kind, piece.kind]
        entry[0] += piece.duration_us
        entry[1] += 1
    ranked = sorted(totals.items(), key=lambda item: (-item[1][0], item[0]))
    return [
        PathPart(name=name, kind=kind, us=us, share=us / window if window else 0.0,
                 pieces=int(many))
        for (name, kind), (us, many) in ranked
    ]  # fmt: skip


def _by_rank(
    paths: Sequence[RankPath], pieces: Sequence[PathPiece], window: float
) -> dict[str, float]:
    totals = [0.0] * len(paths)
    for piece in pieces:
        totals[piece.rank] += piece.duration_us
    found: dict[str, float] = {}
    for position, us in enumerate(totals):
        if us:
            name = str(paths[position].collectives.name(position))
            found[name] = found.get(name, 0.0) + us / window
    return found


# -- what-if ------------------------------------------------------------------------------------


def _what_if(joined: JoinedRanks, shorten: Mapping[str, float]) -> ShortenedRun:
    before = joined.end_us - joined.origin_us
    after = shortened_end_us(joined) - joined.origin_us
    return ShortenedRun(
        shortened=dict(shorten),
        window_us=after,
        saved_us=before - after,
        speedup=before / after if after > 0 else float("inf"),
    )
