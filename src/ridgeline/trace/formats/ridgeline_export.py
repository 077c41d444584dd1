"""What `ridgeline trace export` writes, read back: every rank that was put in, as it was.

An export is a Chrome trace, so that other tools read it as one, with two things of ours: the first
member of the document says what the file is, and among the events stand marks, a line each. The
events of a rank are between two marks, the second of which holds the rest of that rank's document;
what follows the last mark was drawn by us (counters, the critical path) and is no event of anyone.

    {"ridgelineExport":1, …, "traceEvents":[
    {"ph":"M","name":"ridgeline_rank",…,"args":{"file":"rank0.json.gz","rank":0}},
    …events of the rank, as they were recorded…,
    {"ph":"M","name":"ridgeline_rank_end",…,"args":{"document":{"deviceProperties":…}}},
    {"ph":"M","name":"ridgeline_tracks",…},
    …counters and the critical path…
    ]}

A mark is told from a text that looks like one by its quotes: within a string they are escaped. In a
folder of ranks an export is not one more rank, so a folder's exports are left out.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.trace.columns import Trace, named_part
from ridgeline.trace.file_text import GZIP_MAGIC, text_pieces
from ridgeline.trace.formats import FileFormat
from ridgeline.trace.formats.kineto import read_kineto

HEADER = b'{"ridgelineExport":1'
"""What an export begins with."""
RANK, RANK_END, TRACKS = "ridgeline_rank", "ridgeline_rank_end", "ridgeline_tracks"
_MARK = re.compile(
    rb',?\n\{"ph":"M","name":"(ridgeline_\w+)","pid":0,"tid":0,"args":(\{[^\n]*\})\},?(?=\n)'
)
_MARK_BEGINS = b'\n{"ph":"M","name":"ridgeline_'


def mark(kind: str, args: dict[str, Any]) -> bytes:
    """A mark among the events, which has a line of its own."""
    event = {"ph": "M", "name": kind, "pid": 0, "tid": 0, "args": args}
    return msgspec.json.encode(event)


def is_export(path: Path) -> bool:
    """Tell from its first bytes whether a file is an export."""
    try:
        with path.open("rb") as file:
            start = file.read(512)
    except OSError:
        return False
    if start.startswith(GZIP_MAGIC):
        try:
            start = zlib.decompressobj(wbits=31).decompress(start, len(HEADER))
        except zlib.error:
            return False
    return start.startswith(HEADER)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankText:
    """The document of one rank as text, as its profiler could have written it."""

    name: str
    """The file that the rank was in, without its folder."""
    rank: int | None
    warnings: tuple[str, ...]
    """What was said of it when it was exported."""
    pieces: Iterator[bytes]
    """To be used up before the next rank is asked for."""


def rank_texts(path: Path, warnings: list[str]) -> Iterator[RankText]:
    """The ranks of an export one after the other; the whole file where it has lost its marks."""
    parts = _parts(text_pieces(path, warnings))
    kind, found = next(parts, ("", b""))
    while kind:
        if kind == RANK:
            args = msgspec.json.decode(found)
            pieces = _document(parts)
            said = tuple(args.get("warnings", ()))
            yield RankText(name=str(args["file"]), rank=args["rank"], warnings=said, pieces=pieces)
            for _ in pieces:
                pass  # what the reader left
        elif kind == TRACKS:
            return
        kind, found = next(parts, ("", b""))


def _document(parts: Iterator[tuple[str, bytes]]) -> Iterator[bytes]:
    """The text up to the end of a rank, framed as a document; one that is cut short stays open."""
    before = b'{"traceEvents":['  # with the first events: a reader may look at both together
    for kind, found in parts:
        if kind == RANK_END:
            document = msgspec.json.encode(msgspec.json.decode(found)["document"])
            yield before + b"]" + (b"," if len(document) > 2 else b"") + document[1:]
            return
        if kind == "text":
            yield before + found
            before = b""
    if before:
        yield before


def _parts(pieces: Iterator[bytes]) -> Iterator[tuple[str, bytes]]:
    """Marks with their arguments, and the texts between them."""
    rest = b""
    for piece in pieces:
        rest += piece
        done = 0
        for found in _MARK.finditer(rest):
            if found.start() > done:
                yield "text", rest[done : found.start()]
            yield found[1].decode(), found[2]
            done = found.end()
        kept = rest.rfind(_MARK_BEGINS, done)
        if kept < 0:
            kept = len(rest) - len(_MARK_BEGINS)
        kept = max(done, kept - 1)  # a comma before it
        if kept > done:
            yield "text", rest[done:kept]
        rest = rest[kept:]
    if rest:
        yield "text", rest


def _read(path: Path, details: bool) -> list[Trace]:
    warnings: list[str] = []
    found = []
    for text in rank_texts(path, warnings):
        own = read_kineto(path, details=details, pieces=text.pieces)
        file = named_part(str(path), text.name)
        said = (*warnings, *text.warnings)
        found += [
            replace(
                trace,
                file=file,
                rank=text.rank if len(own) == 1 else trace.rank,
                warnings=(*said, *trace.warnings),
            )
            for trace in own
        ]
    if len(found) == 1:
        return [replace(found[0], file=str(path))]
    return found or read_kineto(path, details=details)


FORMAT = FileFormat(
    name="an export of ridgeline",
    sniff=lambda path, start: (
        start.startswith((GZIP_MAGIC, HEADER[: len(start)])) and is_export(path)
    ),
    read=_read,
)
