"""The history of a run: one JSON line per measurement, and whether it has become slower.

`append` adds a run to the file; `judge` looks for jumps and slow drifts over all entries and
names the first bad one. The file is replaced as a whole through a temporary file, so a crash
leaves either the old or the new history, and writers wait for one another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.measure.compare.readers import Origin
from ridgeline.measure.compare.runs import Run
from ridgeline.measure.statistics.change_points import FEWEST_ENTRIES, SeriesSegment, segments
from ridgeline.records.input_file import parse_json, read_bytes
from ridgeline.records.store import write_atomically

MOST_ENTRIES = 500
"""The newest entries that are judged: the search grows with the square of their number."""
SHORTEST_BEST = 5
"""Entries that a level must have held to be what newer ones are held against."""


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a history file."""

    source: str
    kind: str
    step_seconds: float
    """Median seconds of a step."""
    mean_step_seconds: float
    steps: int
    peak_memory_bytes: int
    origin: Origin


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry as named in an answer."""

    line: int
    """In the history file, from 1."""
    source: str
    date: str
    step_seconds: float


class HistoryChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place where the history changed for good, or began to drift."""

    kind: str
    """Whether it is a `jump` or a `drift`."""
    at: HistoryPoint
    """The first entry after the jump, or of the drift."""
    from_seconds: float
    to_seconds: float
    """The level after a jump; where a drift had got to by its last entry."""


class HistoryVerdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the history says about its newest entries."""

    file: str
    verdict: str
    """`slower`, `steady`, or `too few entries`."""
    entries: int
    """The entries that were judged: of the newest entry's device, command and kind."""
    left_out: int
    slowdown: float
    """The newest level over the best one before it."""
    first_bad: HistoryPoint | None
    """The first entry since which every level was slower than the best by over the threshold."""
    changes: list[HistoryChange]
    warnings: list[str]


def entry_of(run: Run) -> HistoryEntry:
    """What a history keeps of a run."""
    return HistoryEntry(
        source=run.source,
        kind=run.kind,
        step_seconds=float(np.median(run.samples)),
        mean_step_seconds=float(np.mean(run.samples)),
        steps=len(run.samples),
        peak_memory_bytes=run.peak_memory_bytes,
        origin=run.origin,
    )


def read_history(path: Path) -> list[tuple[int, HistoryEntry]]:
    """All entries with their line numbers. A line that cannot be read is an `InputError`."""
    if not path.exists():
        return []
    lines = read_bytes(path, ours=True).split(b"\n")
    entries = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        cure = "repair or remove the line"
        where = f"{path}:{number}: not a history entry"
        entry = parse_json(line, HistoryEntry, where=where, cure=cure)
        if entry.step_seconds <= 0:
            raise InputError(
                f"{path}:{number}: step_seconds is {entry.step_seconds}, not a time above 0; {cure}"
            )
        entries.append((number, entry))
    return entries


def append(path: Path, entry: HistoryEntry) -> bool:
    """Add `entry` at the end. False when the file ends with it already: a retry adds nothing."""
    path = path.resolve()  # a link keeps pointing where it did
    with _only_writer(path):
        entries = read_history(path)
        if entries and entries[-1][1] == entry:
            return False
        content = path.read_bytes()
        if content and not content.endswith(b"\n"):
            content += b"\n"
        write_atomically(path, content + msgspec.json.encode(entry) + b"\n")
    return True


@contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    """Hold the lock of the file that `path` names now, not of one that was just replaced."""
    import fcntl  # not on every platform, and only this function needs it

    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("ab")
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                yield
                return


def judge(path: Path, *, threshold: float) -> HistoryVerdict:
    """Did the step time jump or drift, and is the newest level slower than the best before it?"""
    everything = read_history(path)
    if not everything:
        raise InputError(f"{path}: holds no entries")
    newest = everything[-1][1]
    alike = [(line, entry) for line, entry in everything if _comparable(entry, newest)]
    judged = alike[-MOST_ENTRIES:]
    pieces = segments([entry.step_seconds for _, entry in judged])
    points = [_point(line, entry) for line, entry in judged]
    best = _best_level(pieces)
    first_bad = _first_bad(pieces, best * (1 + threshold))
    warnings = []
    if len(everything) > len(alike):
        warnings.append(
            f"{len(everything) - len(alike)} of {len(everything)} entries are of another device, "
            "command or kind of run and were left out"
        )
    if len(judged) < FEWEST_ENTRIES:
        verdict = "too few entries"
    else:
        verdict = "steady" if first_bad is None else "slower"
    return HistoryVerdict(
        file=str(path),
        verdict=verdict,
        entries=len(judged),
        left_out=len(everything) - len(judged),
        slowdown=pieces[-1].last_value / best,
        first_bad=None if first_bad is None else points[first_bad],
        changes=_changes(pieces, points),
        warnings=warnings,
    )


def _comparable(entry: HistoryEntry, newest: HistoryEntry) -> bool:
    mine, its = entry.origin, newest.origin
    return (entry.kind, mine.device, mine.host_cpu, mine.command) == (
        newest.kind,
        its.device,
        its.host_cpu,
        its.command,
    )


def _point(line: int, entry: HistoryEntry) -> HistoryPoint:
    return HistoryPoint(
        line=line,
        source=entry.source,
        date=entry.origin.date,
        step_seconds=entry.step_seconds,
    )


def _best_level(pieces: list[SeriesSegment]) -> float:
    """The fastest level that was held; of a drift, its value over its fastest few entries."""
    held = [piece for piece in pieces if piece.end - piece.start >= SHORTEST_BEST] or pieces
    inward = SHORTEST_BEST // 2
    return min(
        piece.value_at(place)
        for piece in held
        for place in (
            min(piece.start + inward, piece.end - 1),
            max(piece.end - 1 - inward, piece.start),
        )
    )


def _first_bad(pieces: list[SeriesSegment], limit: float) -> int | None:
    """Index after the last entry whose fitted value is within the limit; None if the newest is."""
    for piece in reversed(pieces):
        for index in reversed(range(piece.start, piece.end)):
            if piece.value_at(index) <= limit:
                return index + 1 if index + 1 < pieces[-1].end else None
    return None


def _changes(pieces: list[SeriesSegment], points: list[HistoryPoint]) -> list[HistoryChange]:
    changes = []
    before: SeriesSegment | None = None
    for piece in pieces:
        if before is not None or piece.drifts:
            changes.append(
                HistoryChange(
                    kind="drift" if piece.drifts else "jump",
                    at=points[piece.start],
                    from_seconds=piece.first_value if before is None else before.last_value,
                    to_seconds=piece.last_value,
                )
            )
        before = piece
    return changes
