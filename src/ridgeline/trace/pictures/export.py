"""An annotated trace for Perfetto: what was recorded as it stands, and what we draw beside it.

Format: Chrome's trace events ("Trace Event Format", Google, 2016), JSON Object form, which
ui.perfetto.dev, chrome://tracing and the tools that read Kineto's files open. The text of every
event of the inputs is copied through; the counters and the critical path of `tracks.py` follow as
processes of their own. How it is read back: `formats/ridgeline_export.py`.

One rank is written byte for byte. Of several, each on the first one's clock, processes of the same
number are told apart: those of later ranks get numbers that are free, and so do their flows. Ranks
are written one after the other and are never in memory as a whole.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from itertools import count, islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from ridgeline.records.store import whole_file
from ridgeline.trace.critical_path.path import job_pieces
from ridgeline.trace.file_text import text_pieces
from ridgeline.trace.formats import format_of, ridgeline_export
from ridgeline.trace.formats.kineto import FORMAT as KINETO
from ridgeline.trace.formats.kineto.copying import copy_events
from ridgeline.trace.formats.kineto.text import repaired
from ridgeline.trace.load import file_of, read_traces
from ridgeline.trace.pictures.kineto_events import kineto_document, kineto_events
from ridgeline.trace.pictures.tracks import DrawnTracks, Process, RankTracks, TrackCounts

FIRST_FREE_PROCESS = 1_000_000_000
"""No system numbers its processes as high."""
FLOWS_PER_RANK = 2**32
_TOGETHER = 4096
"""Events that are encoded at a time."""
_encode = msgspec.json.Encoder(decimal_format="number").encode
_fields = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_FLOWS = (b'"s"', b'"t"', b'"f"')


@dataclass(slots=True)
class ExportCounts:
    """How much an export holds, and what it could not take over."""

    events: int = 0
    """All of them, those of the inputs included."""
    tracks: TrackCounts = field(default_factory=TrackCounts)
    warnings: list[str] = field(default_factory=list)
    """What could not be read of the inputs."""


def export_chrome(
    files: Sequence[Path], ranks: Sequence[RankTracks], path: Path, *, cache: Path | None = None
) -> ExportCounts:
    """Write the annotated trace: whole file or none.

    Args:
        files: What is exported.
        ranks: The `rank_tracks` of every trace in them, in the same order.
        path: To be written; compressed where its name ends with `.gz`.
        cache: A folder of parsed traces, for formats whose text is none.
    """
    paths = [rank.path for rank in ranks]
    pieces, shifts = job_pieces(paths)
    processes = _Processes(several=len(ranks) > 1)
    with whole_file(path) as whole, _packed(whole, path) as file:
        export = _Export(file, [_Place.of(paths[0], one, shift) for one, shift in
                                zip(paths, shifts, strict=True)], processes,
                         Counter(Path(file_of(one.collectives.file)) for one in paths))  # fmt: skip
        for name in files:
            export.take_file(name, cache)
        drawing = DrawnTracks(
            ranks=ranks,
            labels=[place.label for place in export.places],
            shifts_us=shifts,
            process_of=processes.of,
            new_process=processes.new,
            counts=export.counts.tracks,
        )
        export.finish(drawing.events(pieces))
    return export.counts


def _packed(file: BinaryIO, path: Path) -> AbstractContextManager[BinaryIO]:
    if not path.name.endswith(".gz"):
        return nullcontext(file)
    return cast("BinaryIO", gzip.GzipFile(path.name, "wb", compresslevel=5, fileobj=file))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a rank stands among the others."""

    rank: int | None
    label: str
    shift: Decimal
    """To be added to the profiler's stamps, in microseconds: those of the first rank result."""
    clock_offset_ns: int

    @classmethod
    def of(cls, first: Any, own: Any, shift_us: float) -> _Place:
        bases = own.collectives.base_us - first.collectives.base_us
        rank = own.collectives.rank
        name = Path(own.collectives.file).name
        return cls(
            rank=rank,
            label=name if rank is None else f"rank {rank}",
            shift=round(Decimal(shift_us - bases), 3),
            clock_offset_ns=first.collectives.clock_offset_ns,
        )


@dataclass(slots=True)
class _Processes:
    """The numbers of processes: those of a later rank that are taken already become others."""

    several: bool
    taken: dict[Process, int] = field(default_factory=dict)
    """Number in the export → the rank that has it."""
    given: dict[tuple[int, Process], Process] = field(default_factory=dict)
    free: Iterator[int] = field(default_factory=lambda: count(FIRST_FREE_PROCESS))

    def of(self, rank: int, process: Process) -> Process:
        """The number of a rank's process in the export."""
        if not self.several:
            return process
        found = self.given.get((rank, process))
        if found is None:
            found = process if process not in self.taken else self._other(rank, process)
            self.taken[found] = rank
            self.given[rank, process] = found
        return found

    def _other(self, rank: int, process: Process) -> Process:
        return f"{process} ({rank})" if isinstance(process, str) else self.new()

    def new(self) -> int:
        """A number that nobody has."""
        return next(number for number in self.free if number not in self.taken)


class _Export:
    """The file as far as it is written."""

    def __init__(
        self,
        file: BinaryIO,
        places: Sequence[_Place],
        processes: _Processes,
        ranks_in: Mapping[Path, int],
    ) -> None:
        self.file = file
        self.places = places
        self.processes = processes
        self.ranks_in = ranks_in
        """How many ranks there are in each file."""
        self.counts = ExportCounts()
        self._rank = -1
        """The rank that is written."""
        self._begun = False
        self._after: dict[str, Any] = {}
        """What the document of the only rank says after its events."""

    def take_file(self, path: Path, cache: Path | None) -> None:
        """Write every rank of a file; of several that were joined in it, what is known of each."""
        known = format_of(path)
        if known is KINETO and self.ranks_in[path] == 1:
            self._copy(path, path.name, text_pieces(path, self.counts.warnings))
        elif known is ridgeline_export.FORMAT:
            for one in ridgeline_export.rank_texts(path, self.counts.warnings):
                self._copy(path, one.name, one.pieces, one.warnings)
        else:
            for trace in read_traces(path, details=True, cache=cache):
                self._begin_rank(Path(trace.file).name, b"", trace.warnings)
                self._write_events(kineto_events(trace))
                self._end_rank(kineto_document(trace), set())

    def finish(self, tracks: Iterator[dict[str, Any]]) -> None:
        """Write the tracks and close the document."""
        self._element(ridgeline_export.mark(ridgeline_export.TRACKS, {}))
        while many := [_encode(event) for event in islice(tracks, _TOGETHER)]:
            self._element(b",\n".join(many), len(many))
        members = b"".join(
            b"," + _encode(key) + b":" + _encode(value) for key, value in self._after.items()
        )
        self.file.write(b"\n]" + members + b"}\n")

    def _copy(
        self, path: Path, name: str, pieces: Iterator[bytes], said: tuple[str, ...] = ()
    ) -> None:
        front: set[str] = set()

        def begin(text: bytes) -> None:
            front.update(self._begin_rank(name, text, said))

        take = self._take_changed if self.processes.several else self._element
        document = copy_events(path, pieces, begin, take)
        self.counts.warnings += [f"{path}: {said}" for said in document.warnings]
        self._end_rank(document.members, front)

    def _begin_rank(self, name: str, text: bytes, said: tuple[str, ...]) -> set[str]:
        """Write what comes before a rank's events; returns which members of its document do."""
        self._rank += 1
        place = self.places[self._rank]
        front: dict[str, Any] = {}
        if not self._begun:
            self._begun = True
            front = {"displayTimeUnit": "ns", "baseTimeNanoseconds": place.clock_offset_ns}
            members = _encode(front)[1:-1] + b',"traceEvents":['
            if not self.processes.several:
                front, members = _front(text)
            self.file.write(ridgeline_export.HEADER + b"," + members)
            self.file.write(b"\n")
            separate = b""
        else:
            separate = b",\n"
        args = {"file": name, "rank": place.rank, **({"warnings": said} if said else {})}
        self.file.write(separate + ridgeline_export.mark(ridgeline_export.RANK, args))
        return set(front)

    def _end_rank(self, document: dict[str, Any], front: set[str]) -> None:
        if self.processes.several and self.places[0].clock_offset_ns:
            document = {**document, "baseTimeNanoseconds": self.places[0].clock_offset_ns}
        elif not self.processes.several:
            self._after = {key: value for key, value in document.items() if key not in front}
        args = {"document": document}
        self._element(ridgeline_export.mark(ridgeline_export.RANK_END, args))

    def _write_events(self, events: Iterator[dict[str, Any]]) -> None:
        take = self._take_changed if self.processes.several else self._element
        while many := [_encode(event) for event in islice(events, _TOGETHER)]:
            take(b",\n".join(many), len(many))

    def _element(self, text: bytes, events: int = 0) -> None:
        self.counts.events += events
        self.file.write(b",\n" + text)

    def _take_changed(self, text: bytes, events: int) -> None:
        """Write events of one of several ranks."""
        changed = _Change(self._rank, self.places[self._rank], self.processes.of)
        try:
            found = _fields(b"[" + text + b"]")
        except msgspec.ValidationError:  # something among them is no event
            every = msgspec.json.decode(b"[" + text + b"]")
            found = _fields(_encode([event for event in every if isinstance(event, dict)]))
        self._element(b",\n".join(_encode(changed.event(event)) for event in found), events)


def _front(text: bytes) -> tuple[dict[str, Any], bytes]:
    """The members of a document that stand before its events, and their text; an array has none."""
    plain = text.lstrip(b"\xef\xbb\xbf \t\r\n")
    for attempt in (plain, repaired(plain)):
        try:
            found = msgspec.json.decode(attempt + b"]}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(found, dict):
            return found, attempt[1:].lstrip()
    return {}, b'"traceEvents":['


@dataclass(frozen=True, slots=True)
class _Change:
    """What is different in the events of one of several ranks."""

    rank: int
    place: _Place
    process_of: Callable[[int, Process], Process]

    def event(self, event: dict[str, Any]) -> dict[str, Any]:
        """The event with its process, its flow and its stamp among those of all ranks."""
        process, phase = event.get("pid"), event.get("ph")
        if process is not None:
            own = msgspec.json.decode(process)
            if isinstance(own, int | str):
                event["pid"] = self.process_of(self.rank, own)
        if self.place.shift and "ts" in event:
            event["ts"] = self._shifted(event["ts"])
        if phase is not None and bytes(phase) in _FLOWS and self.rank:
            event["id"] = self._flow(event.get("id"))
        elif "args" in event and bytes(event.get("name", b"")) == b'"process_name"':
            args = msgspec.json.decode(event["args"])
            if isinstance(args, dict):
                event["args"] = {**args, "name": f"{self.place.label} {args.get('name', '')}"}
        return event

    def _shifted(self, stamp: msgspec.Raw) -> object:
        try:
            return Decimal(bytes(stamp).decode()) + self.place.shift
        except InvalidOperation:  # no number
            return stamp

    def _flow(self, number: msgspec.Raw | None) -> object:
        try:
            return int(bytes(number or b"").strip(b'"'), 0) + self.rank * FLOWS_PER_RANK
        except ValueError:
            return number
