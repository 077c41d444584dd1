"""What an export draws beside the events of ranks: their counters, and the critical path.

Of each rank a `RankTracks` is kept, and the trace is not, so that many ranks need not be in memory
together and their workers can send them. Tracks are processes of their own. Their slices have no
category, so that a reader that counts events by category, ours or another, counts none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from ridgeline.trace.columns import Narrow, Trace
from ridgeline.trace.critical_path.path import PathPiece
from ridgeline.trace.critical_path.rank_path import RankPath, rank_path
from ridgeline.trace.pictures.timeline import TimelineCounters, counters

COUNTER_SLICES = 2000
Event = dict[str, Any]
Process = int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTracks:
    """What is drawn of one rank."""

    path: RankPath
    counters: TimelineCounters | None
    """None for a rank that has no GPU work."""
    devices: Narrow
    """The GPU of each event of the rank's GPU table."""
    threads: tuple[tuple[Process, Process], ...]
    """(process, thread) of each host thread."""
    base_us: float
    """What the profiler called the time that is 0 here."""


def rank_tracks(trace: Trace) -> RankTracks:
    """What is drawn of a trace."""
    found = None
    if len(trace.gpu):
        found = counters(trace, min(COUNTER_SLICES, max(10, 2 * len(trace.gpu))))
    return RankTracks(
        path=rank_path(trace),
        counters=found,
        devices=trace.gpu.device,
        threads=trace.threads,
        base_us=trace.base_us,
    )


@dataclass(slots=True)
class TrackCounts:
    """How much was drawn."""

    flows: int = 0
    counters: int = 0
    path_pieces: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTracks:
    """The tracks of ranks on one clock, as events."""

    ranks: Sequence[RankTracks]
    labels: Sequence[str]
    shifts_us: Sequence[float]
    """Puts the times of each rank on the common clock."""
    process_of: Callable[[int, Process], Process]
    """The process, in the export, of a rank's process."""
    new_process: Callable[[], int]
    """A number that no process has."""
    counts: TrackCounts = field(default_factory=TrackCounts)

    def events(self, pieces: Sequence[PathPiece]) -> Iterator[Event]:
        """The critical path, then the counters of each rank."""
        yield from self._path(pieces)
        for rank, tracks in enumerate(self.ranks):
            if tracks.counters is not None:
                yield from self._counters(rank, tracks.counters)

    def _stamp(self, us: float) -> float | Decimal:
        """A moment of the common clock as the first rank's profiler writes it, to a nanosecond."""
        base = self.ranks[0].base_us
        if base == 0.0:
            return round(us, 3)
        whole = round(Decimal(us), 3) + Decimal(base)
        return float(whole) if abs(whole) < 2**33 else whole

    def _counters(self, rank: int, found: TimelineCounters) -> Iterator[Event]:
        process = self.new_process()
        yield _named("process_name", process, f"{self.labels[rank]} counters")
        series = {
            "GPU busy %": found.busy * 100,
            "communication %": found.communication * 100,
            "queue depth": found.queue_depth,
        }
        if found.memory_bytes is not None:
            series["GPU memory bytes"] = found.memory_bytes
        starts = (found.edges_us[:-1] + self.shifts_us[rank]).tolist()
        for name, values in series.items():
            before = None
            for start, value in zip(starts, values.tolist(), strict=True):
                if value != before:
                    self.counts.counters += 1
                    yield {
                        "ph": "C", "name": name, "pid": process, "tid": 0,
                        "ts": self._stamp(start), "args": {"value": round(value, 3)},
                    }  # fmt: skip
                before = value

    def _path(self, pieces: Sequence[PathPiece]) -> Iterator[Event]:
        if not pieces:
            return
        process = self.new_process()
        yield _named("process_name", process, "critical path")
        before: PathPiece | None = None
        for piece in pieces:
            self.counts.path_pieces += 1
            yield {
                "ph": "X", "name": piece.name, "pid": process, "tid": 0,
                "ts": self._stamp(piece.start_us), "dur": round(piece.duration_us, 3),
                "args": {"kind": piece.kind},
            }  # fmt: skip
            source, target = self._track(before), self._track(piece)
            if before is not None and source is not None and target not in (None, source):
                yield from self._arrow(before, source, piece, target)
            before = piece

    def _arrow(
        self, before: PathPiece, source: Any, piece: PathPiece, target: Any
    ) -> Iterable[Event]:
        """From just before the end of a piece to the start of the next, on the ranks' tracks."""
        self.counts.flows += 1
        shared = {"name": "critical path", "cat": "critical path", "id": self.counts.flows}
        left = before.start_us + max(0.0, before.duration_us - 0.001)
        yield {"ph": "s", **shared, "pid": source[0], "tid": source[1], "ts": self._stamp(left)}
        yield {"ph": "f", "bp": "e", **shared, "pid": target[0], "tid": target[1],
               "ts": self._stamp(piece.start_us)}  # fmt: skip

    def _track(self, piece: PathPiece | None) -> tuple[Process, Process] | None:
        """The process and thread that a piece ran on."""
        if piece is None:
            return None
        tracks = self.ranks[piece.rank]
        if piece.gpu_event is not None and piece.stream is not None:
            device = int(tracks.devices[piece.gpu_event])
            return self.process_of(piece.rank, device), piece.stream
        if piece.thread is None:
            return None
        process, thread = tracks.threads[piece.thread]
        return self.process_of(piece.rank, process), thread


def _named(kind: str, process: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": 0, "args": {"name": name}}
