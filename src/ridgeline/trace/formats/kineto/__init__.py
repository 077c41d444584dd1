"""Kineto's JSON (Chrome trace format), plain or gzipped, as columns: `read_kineto(path)`.

Format: what torch.profiler's `export_chrome_trace` writes (pytorch/kineto,
libkineto/src/output_json.cpp) and its older forms: categories with a capital letter and whole
microseconds (torch 1.8), `args` without shapes, stacks or correlations, a bare array of events.

How: the text is streamed (and gunzipped) in pieces of 512 KiB, each cut at an event's border
(`text.py`), decoded by msgspec into small typed structs that are chosen by category
(`events.py`), and poured into numpy columns (`columns.py`). Only columns are kept, so the peak is a
fraction of the file. A file that ends early or goes on after its end is read as far as it goes,
with a warning.
"""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.errors import InputError
from ridgeline.trace.columns import Trace, TraceDevice
from ridgeline.trace.formats import FileFormat
from ridgeline.trace.formats.kineto.columns import Columns
from ridgeline.trace.formats.kineto.events import KNOWN, Role, decoders, role_of, split_raw
from ridgeline.trace.formats.kineto.text import (
    LONGEST_HEADER_BYTES,
    events_start,
    last_border,
    next_event,
    pieces_of_batch,
    repaired,
    text_pieces,
)

_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_FINE_STAMP = re.compile(rb'"ts"\s*:\s*\d{15,}\.\d*[1-9]')
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for text that is no JSON, no UTF-8, or nested beyond reason."""
_CLOSE = ord("]")
_JOINED_PIECES = 64
"""How many pieces an event with nested objects may have been split into."""
LARGE_HEADER_BYTES = 2**16
"""A text with this much before its first event may still be a trace."""
_RANK_IN_NAME = re.compile(r"rank[_-]?(\d+)|worker[_-]?(\d+)", re.IGNORECASE)


def read_kineto(path: Path, *, details: bool = False) -> Trace:
    """Read one rank's Kineto trace; `details` adds shapes, call stacks and sequence numbers.

    Raises:
        InputError: the file is not there, or is no Chrome trace.
    """
    reading = _Reading(path=path, columns=Columns(details=details))
    with _no_collection():
        reading.run()
        return reading.trace()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Switch garbage collection off: millions of small objects come and go, none in a cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(slots=True)
class _Reading:
    """The state of one reading."""

    path: Path
    columns: Columns
    warnings: list[str] = field(default_factory=list)
    tags: tuple[str, ...] = KNOWN
    stamp: type = float
    unread: Counter[str] = field(default_factory=Counter)
    """Events of categories that nobody has told us about."""
    damaged: int = 0
    num_events: int = 0
    raw_bytes: int = 0
    rest: bytes = b""
    """Text from the next event on."""
    frame: tuple[bytes, bytes] = (b"", b"")
    """The document before and after its events."""
    ended: bool = False
    thread_names: dict[int, str] = field(default_factory=dict)

    def run(self) -> None:
        pieces = self._counted(text_pieces(self.path, self.warnings))
        self._read_header(pieces)
        for piece in pieces:
            if self.ended:
                self.frame = (self.frame[0], self.frame[1] + piece)
                continue
            text = bytearray().join((b"[", self.rest, piece))
            cut = last_border(text)
            self.rest = bytes(memoryview(text)[next_event(text, cut) if cut else 1 :])
            if cut:
                # What follows the last whole event, a comma or a space, closes the array instead.
                text[cut] = _CLOSE
                self._take(memoryview(text)[: cut + 1])
        if not self.ended:
            last, self.rest = self.rest, b""
            self._take(b"[" + last + b"]", final=True)
        empty = self.ended and not self.damaged
        if self.num_events <= self.damaged and not empty:
            raise _no_trace(self.path, "nothing in it is an event")
        if not self.ended:
            self.warnings.append("the file ends early; read up to there")

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self.raw_bytes += len(piece)
            yield piece

    def _read_header(self, pieces: Iterator[bytes]) -> None:
        text = b""
        for piece in pieces:
            text += piece
            start = events_start(text)
            if start is not None:
                self.frame = (text[:start], b"")
                self.rest = text[next_event(text, start) :]
                if _FINE_STAMP.search(text):
                    self.stamp = Decimal
                return
            if len(text) > LONGEST_HEADER_BYTES:
                break
        raise _no_trace(self.path, "there is no `traceEvents` in it")

    def _take(self, array: bytes | memoryview, *, final: bool = False) -> None:
        """Decode a batch at once where it is well formed, event by event where it is not."""
        known = decoders(self.tags, self.stamp, details=self.columns.details)
        try:
            try:
                self._sort(known.batch(array))
            except msgspec.ValidationError:
                self._take_each(split_raw(array))
        except _BROKEN as error:
            text = bytes(array)
            end = _closing_bracket(text, error)
            if end is None:
                self._recover(text[1:-1], final=final)
            else:
                self._finish(text[1:-1], end - 1)  # our bracket in front shifts positions by one

    def _finish(self, text: bytes, end: int) -> None:
        """The array of events closes at `end`: what follows is the rest of the document."""
        events, after, self.rest = text[:end], text[end:] + self.rest, b""
        self.ended = True
        self.frame = (self.frame[0], after)
        if events.strip():
            self._take(b"[" + events + b"]")

    def _recover(self, text: bytes, *, final: bool) -> None:
        """Read a batch that is no valid JSON event by event, mending and skipping."""
        spans = list(pieces_of_batch(text))
        position = 0
        while position < len(spans) and not self.ended:
            start = spans[position][0]
            ends = [end for _, end in spans[position : position + _JOINED_PIECES]]
            taken = self._take_shortest(text, start, ends)
            if taken:
                position += taken
            elif not final and position + len(ends) == len(spans):
                # The batch was cut between objects nested in this event: its rest comes next.
                self.rest = text[start:] + b"," + self.rest
                return
            else:
                self.damaged += not (final and position == len(spans) - 1)
                position += 1

    def _take_shortest(self, text: bytes, start: int, ends: list[int]) -> int:
        """Take the event at `start`, whichever piece it ends with; how many pieces that were."""
        for count, end in enumerate(ends, start=1):
            attempts = (
                [text[start:end]] if count > 1 else [text[start:end], repaired(text[start:end])]
            )
            for attempt in attempts:
                try:
                    self._take_each(split_raw(b"[" + attempt + b"]"))
                except _BROKEN as error:
                    close = _closing_bracket(b"[" + attempt + b"]", error)
                    if close is None:
                        continue
                    self._finish(attempt + text[end:], close - 1)
                return count
            if text.count(b"{", start, end) <= text.count(b"}", start, end):
                return 0  # nothing is left open: more pieces would not help
        return 0

    def _take_each(self, events: list[msgspec.Raw]) -> None:
        """Decode events one at a time, for what a batch decoder refuses as a whole."""
        taken = []
        for event in events:
            known = decoders(self.tags, self.stamp, details=self.columns.details)
            try:
                taken.append(known.one(event))
            except msgspec.ValidationError:
                self._take_odd(event)
        self._sort(taken)

    def _take_odd(self, raw: msgspec.Raw) -> None:
        """An event without a category, or of a kind or form that nobody has told us about."""
        event: Any = msgspec.json.decode(raw)
        self.num_events += 1
        if not isinstance(event, dict):
            self.damaged += 1
            return
        category, phase = event.get("cat"), event.get("ph")
        if phase == "M":
            self._take_metadata(event)
        elif category is None and event.get("name") == "[memory]":  # torch 1.8 gives it none
            self.num_events -= 1
            event["cat"] = "cpu_instant_event"
            self._take_each([msgspec.Raw(msgspec.json.encode(event))])
        elif not isinstance(phase, str):
            self.damaged += 1
        elif phase != "X" or not isinstance(category, str):
            return  # counters, flows, instants, spans of other programs
        elif category not in self.tags:
            self.tags = (*self.tags, category)
            if role_of(category) is None:
                self.unread[category] += 1
            else:
                self.num_events -= 1
                self._take_each([raw])
        else:
            self.damaged += 1

    def _take_metadata(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        if event.get("name") != "thread_name" or not isinstance(args, dict):
            return
        pair = (event.get("pid", 0), event.get("tid", 0))
        if all(isinstance(part, int | str) for part in pair):
            self.thread_names[self.columns.threads[pair]] = str(args.get("name", ""))

    def _sort(self, events: list[Any]) -> None:
        groups: dict[type, list[Any]] = {}
        for event in events:
            kind = event.__class__
            try:
                groups[kind].append(event)
            except KeyError:
                groups[kind] = [event]
        self.num_events += len(events)
        for kind, members in groups.items():
            role, category = kind.SORT  # type: ignore[attr-defined]
            if role is not Role.SKIP:
                self.columns.add(role, category, members)
            elif role_of(category) is None:
                self.unread[category] += len(members)

    def trace(self) -> Trace:
        """What was read, as a `Trace`."""
        document = self._document()
        tables = self.columns.joined()
        self._check(tables)
        info = document.get("distributedInfo")
        distributed = info if isinstance(info, dict) else {}
        return Trace(
            file=os.fspath(self.path),
            rank=self._rank(distributed),
            world_size=_int(distributed.get("world_size")),
            base_us=self.columns.base or 0.0,
            clock_offset_ns=_int(document.get("baseTimeNanoseconds")) or 0,
            devices=tuple(_devices(document.get("deviceProperties"))),
            backend=_str(distributed.get("backend")),
            warnings=tuple(self.warnings),
            names=tuple(self.columns.names),
            threads=tuple(self.columns.threads.members),
            thread_names=self.thread_names,
            collectives=tuple(self.columns.collectives),
            shapes=tuple(_shape(*key) for key in self.columns.shapes),
            stacks=tuple(self.columns.stacks),
            num_events=self.num_events,
            raw_bytes=self.raw_bytes,
            details=self.columns.details,
            **tables,
        )

    def _document(self) -> dict[str, Any]:
        """Everything but the events."""
        before, after = self.frame
        if before.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            return {}
        text = before.lstrip(b"\xef\xbb\xbf") + after
        attempts = [text] if self.ended else [before + b"]}"]
        if self.ended:
            attempts += [text[: text.rfind(b"}") + 1], before + b"]}"]
        for number, attempt in enumerate(attempts):
            for version in (attempt, repaired(attempt)):
                try:
                    document = msgspec.json.decode(version)
                except _BROKEN:
                    continue
                if number and self.ended:
                    self.warnings.append("ignored what follows the events: it is no valid JSON")
                return document if isinstance(document, dict) else {}
        return {}

    def _check(self, tables: dict[str, Any]) -> None:
        if self.damaged:
            self.warnings.append(f"{self.damaged} events could not be read and were left out")
        for category, count in self.unread.most_common(4):
            self.warnings.append(f"{count} events of category {category!r} were not used")
        for name in ("gpu", "host"):
            negative = tables[name].duration_us < 0
            if negative.any():
                tables[name].duration_us[negative] = 0.0
                self.warnings.append(f"{int(negative.sum())} {name} events had a negative duration")

    def _rank(self, distributed: dict[str, Any]) -> int | None:
        rank = _int(distributed.get("rank"))
        if rank is None and (found := _RANK_IN_NAME.search(self.path.name)):
            rank = int(found[1] or found[2])
        return rank


def _no_trace(path: Path, why: str) -> InputError:
    return InputError(
        f"{path}: no profiler trace: {why}; write one with torch.profiler's export_chrome_trace"
    )


def _closing_bracket(array: bytes, error: Exception) -> int | None:
    """Where the array really closes, when that is what the decoder stumbled over."""
    found = _TRAILING.search(str(error))
    if found is None:
        return None
    end = int(found[1]) - 1  # the first character that the decoder did not expect
    while end > 0 and array[end - 1 : end] != b"]":
        end -= 1
    return end - 1 if end > 0 else None


def _shape(dims: bytes, types: bytes, values: bytes) -> str:
    text = b"[" + dims + b"," + (types or b"[]") + (b"," + values if values else b"") + b"]"
    try:
        found = msgspec.json.decode(text, type=list[list[Any]])
    except _BROKEN:
        return "[[],[]]"
    if not all(isinstance(dims, list) for dims in found[0]):
        return "[[],[]]"
    return msgspec.json.encode(found).decode()  # without white space


def _devices(found: Any) -> Iterator[TraceDevice]:
    for entry in found if isinstance(found, list) else []:
        if not isinstance(entry, dict):
            continue
        yield TraceDevice(
            index=_int(entry.get("id")) or 0,
            name=_str(entry.get("name")) or "",
            num_sms=_int(entry.get("numSms")),
            memory_bytes=_int(entry.get("totalGlobalMem")),
        )


def _int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.lstrip("-").isdecimal():
        return int(value)
    return int(value) if isinstance(value, int | float) else None


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _looks_like_kineto(path: Path, start: bytes) -> bool:  # noqa: ARG001 - it may be gzipped
    text = next(text_pieces(path, []), b"")
    return b'"traceEvents"' in text or b'"ph"' in text or len(text) >= LARGE_HEADER_BYTES


FORMAT = FileFormat(
    name="Kineto",
    suffixes=(".json", ".json.gz"),
    sniff=_looks_like_kineto,
    read=lambda path, details: [read_kineto(path, details=details)],
    last_resort=True,
)
