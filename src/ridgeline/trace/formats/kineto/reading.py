"""One reading of a Kineto file: pieces of text, batches of events, columns, a `Trace`.

A batch goes to the `Intake` at once where it is valid JSON, and piece by piece, mended and skipped,
where it is not. Time is linear in the file and memory bounded whatever stands in it: text without
any border between events is given up after `LONGEST_EVENT_BYTES`, and reading goes on at the next.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.trace.columns import Trace
from ridgeline.trace.file_text import BLANKS, text_pieces, without_blank_stretches
from ridgeline.trace.foreign import Seen, archive, foreign_document, foreign_events
from ridgeline.trace.formats.kineto.columns import Columns
from ridgeline.trace.formats.kineto.document import (
    BROKEN,
    devices_of,
    rank_of,
    read_document,
    shape_text,
    text_or_none,
    whole_number,
)
from ridgeline.trace.formats.kineto.events import split_raw
from ridgeline.trace.formats.kineto.intake import Intake
from ridgeline.trace.formats.kineto.several_ranks import ranks_of
from ridgeline.trace.formats.kineto.text import (
    BYTE_ORDER_MARK,
    events_start,
    first_border,
    last_border,
    next_event,
    pieces_of_batch,
    repaired,
)

LONGEST_HEADER_BYTES = 2**26
LONGEST_EVENT_BYTES = 2**24
LONGEST_TAIL_BYTES = 2**24
"""What follows the events is not looked at beyond this."""
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_FINE_STAMP = re.compile(rb'"ts"\s*+:\s*+\d{15,}\.\d*[1-9]')
_CLOSE = ord("]")
_OPENING_BYTES = 2**12
_MOST_IN_VAIN = 1000
"""After so many damaged events in a row the rest of a batch is given up."""
_JOINED_PIECES = 64
"""How many pieces an event with nested objects may have been split into."""
_OVERLAP = 1024
"""A border may lie across two pieces."""
_MOST_ATTEMPTS = 50_000
"""After so many readings of damaged text in vain, pieces are no longer joined."""


@dataclass(slots=True)
class KinetoReading:
    """The state of one reading."""

    path: Path
    intake: Intake
    warnings: list[str] = field(default_factory=list)
    attempts: int = 0
    """Readings of damaged text in vain."""
    raw_bytes: int = 0
    rest: bytes = b""
    """Text from the next event on."""
    searched: int = 0
    """How much of `rest` holds no border."""
    lost: bool = False
    """Is the text up to the next border given up?"""
    opening: bytes = b""
    """The first of the text, by which another program's file is known."""
    before: bytes = b""
    """The document before its events."""
    after: bytearray = field(default_factory=bytearray)
    """The document after its events."""
    ended: bool = False

    @classmethod
    def of(cls, path: Path, *, details: bool) -> KinetoReading:
        """A reading that has not begun."""
        return cls(path=path, intake=Intake(columns=Columns(details=details)))

    def run(self, text: Iterator[bytes] | None = None) -> None:
        """Read the file to its end, or `text` where that is only a part of it.

        Raises:
            InputError: it cannot be read, or is no trace of torch.profiler.
        """
        pieces = without_blank_stretches(
            self._counted(text or text_pieces(self.path, self.warnings))
        )
        self._read_header(pieces)
        for piece in pieces:
            if self.ended:
                self._keep_tail(piece)
            elif self.lost:
                self._find_again(piece)
            else:
                self._take_piece(piece)
        if not self.ended:
            last, self.rest = b"" if self.lost else self.rest, b""
            self._take(b"[" + last + b"]", final=True)
        empty = self.ended and not self.intake.damaged
        if self.intake.num_events <= self.intake.damaged and not empty:
            raise self._refusal()
        if not self.ended:
            self.warnings.append("the file ends early; read up to there")

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self.raw_bytes += len(piece)
            yield piece

    def _read_header(self, pieces: Iterator[bytes]) -> None:
        text, looked_at = bytearray(), 0
        for piece in pieces:
            text += piece if text else piece.lstrip(BLANKS)
            if len(text) < 2 * looked_at:
                continue  # each look goes over all of it
            looked_at = len(text)
            start = events_start(text)
            if start is not None:
                self._begin(bytes(text), start)
                return
            if len(text) > LONGEST_HEADER_BYTES:
                break
        start = events_start(text)
        if start is None:
            known = foreign_document(self.path, text)
            raise known or _no_trace(self.path, "there is no `traceEvents` in it")
        self._begin(bytes(text), start)

    def _begin(self, text: bytes, start: int) -> None:
        if refusal := archive(self.path, text):
            raise refusal
        self.opening = text[:_OPENING_BYTES]
        self.before = text[:start].removeprefix(BYTE_ORDER_MARK)
        self.rest = text[next_event(text, start) :]
        if _FINE_STAMP.search(text):
            self.intake.stamp = Decimal

    def _take_piece(self, piece: bytes) -> None:
        text = bytearray().join((b"[", self.rest, piece))
        cut = last_border(text, self.searched)
        if cut:
            self.rest = bytes(memoryview(text)[next_event(text, cut) :])
            # What follows the last whole event, a comma or a space, closes the array instead.
            text[cut] = _CLOSE
            self._take(memoryview(text)[: cut + 1])
            self.searched = 0
        else:
            self.rest = bytes(memoryview(text)[1:])
            self.searched = len(self.rest)
        if len(self.rest) > LONGEST_EVENT_BYTES:
            self._count_damaged(1)
            self.rest, self.searched, self.lost = b"", 0, True

    def _count_damaged(self, count: int) -> None:
        self.intake.damaged += count
        self.intake.num_events += count

    def _find_again(self, piece: bytes) -> None:
        """Go on at the first border after text that was given up."""
        text = self.rest + piece
        cut = first_border(text)
        if cut:
            self.rest, self.searched, self.lost = text[next_event(text, cut) :], 0, False
        else:
            self.rest = text[-_OVERLAP:]

    def _keep_tail(self, piece: bytes) -> None:
        if len(self.after) < LONGEST_TAIL_BYTES:
            self.after += piece

    def _take(
        self, array: bytes | memoryview, *, final: bool = False, closed: bool = False
    ) -> None:
        """Decode a batch at once where it is well formed, event by event where it is not.

        `final` says that no more text follows, `closed` that the array of events ends with it.
        """
        try:
            self.intake.take(array)
        except BROKEN as error:
            text = bytes(array)
            end = _closing_bracket(text, error)
            if end is None and not self._take_repaired(text):
                self._recover(text[1:-1], final=final, closed=closed)
            elif end is not None:
                self._finish(text[1:-1], end - 1)  # our bracket in front shifts positions by one

    def _take_repaired(self, text: bytes) -> bool:
        """Take a batch whose only fault is what profilers get wrong in every event, such as NaN."""
        mended = repaired(text)
        if mended == text:
            return False
        try:
            self.intake.take(mended)
        except BROKEN:
            return False
        return True

    def _finish(self, text: bytes, end: int) -> None:
        """The array of events closes at `end`: what follows is the rest of the document."""
        rest = b"," + self.rest if self.rest else b""  # it was cut at a comma of the document
        events, after, self.rest = text[:end], text[end:] + rest, b""
        if events.strip():
            self._take(b"[" + events + b"]", final=True, closed=True)
        if not self.ended:
            self.ended = True
            self.after = bytearray(after)

    def _recover(self, text: bytes, *, final: bool, closed: bool) -> None:
        """Read a batch that is no valid JSON event by event, mending and skipping."""
        spans = list(pieces_of_batch(text))
        position = in_vain = 0
        while position < len(spans) and not self.ended:
            if in_vain > _MOST_IN_VAIN:
                self._count_damaged(len(spans) - position)
                return
            start = spans[position][0]
            joined = _JOINED_PIECES if self.attempts < _MOST_ATTEMPTS else 1
            ends = [end for _, end in spans[position : position + joined]]
            taken = self._take_shortest(text, start, ends)
            if taken:
                position += taken
                in_vain = 0
            elif not final and position + len(ends) == len(spans):
                # The batch was cut between objects nested in this event: its rest comes next.
                self.rest = text[start:] + b"," + self.rest
                return
            else:
                if closed or not (final and position == len(spans) - 1):
                    self._count_damaged(1)
                position += 1
                in_vain += 1

    def _take_shortest(self, text: bytes, start: int, ends: list[int]) -> int:
        """Take the event at `start`, whichever piece it ends with; how many pieces that were."""
        for count, end in enumerate(ends, start=1):
            attempts = (
                [text[start:end]] if count > 1 else [text[start:end], repaired(text[start:end])]
            )
            for attempt in attempts:
                try:
                    self.intake.take_each(split_raw(b"[" + attempt + b"]"))
                except BROKEN as error:
                    self.attempts += 1
                    close = _closing_bracket(b"[" + attempt + b"]", error)
                    if close is None:
                        continue
                    self._finish(attempt + text[end:], close - 1)
                return count
            if text.count(b"{", start, end) <= text.count(b"}", start, end):
                return 0  # nothing is left open: more pieces would not help
        return 0

    def traces(self) -> list[Trace]:
        """What was read, as a `Trace`, or one for each rank where several were joined.

        Raises:
            InputError: it holds events, but another program's.
        """
        intake, columns = self.intake, self.intake.columns
        document, shortened = read_document(self.before, bytes(self.after), ended=self.ended)
        if shortened:
            self.warnings.append("ignored what follows the events: it is no valid JSON")
        tables = columns.joined()
        self._check(tables)
        info = document.get("distributedInfo")
        distributed = info if isinstance(info, dict) else {}
        found = Trace(
            file=os.fspath(self.path),
            rank=rank_of(distributed, self.path),
            world_size=whole_number(distributed.get("world_size")),
            base_us=columns.base or 0.0,
            clock_offset_ns=whole_number(document.get("baseTimeNanoseconds")) or 0,
            devices=devices_of(document),
            backend=text_or_none(distributed.get("backend")),
            warnings=tuple(self.warnings),
            names=tuple(columns.names),
            threads=tuple(columns.threads.members),
            thread_names=columns.threads.named(intake.thread_names),
            collectives=tuple(columns.collectives),
            shapes=tuple(shape_text(*key) for key in columns.shapes),
            stacks=tuple(columns.stacks),
            num_events=intake.num_events,
            skipped=dict(intake.unread.most_common()),
            cut=not self.ended,
            raw_bytes=self.raw_bytes,
            details=columns.details,
            **tables,
        )
        return ranks_of(found, columns.known_lanes())

    def _refusal(self) -> InputError:
        """Why a file in which no event can be read is none: what it is, where somebody knows it."""
        known = foreign_document(self.path, self.opening)
        return known or _no_trace(self.path, _nothing_sound(self.intake.damaged))

    def _check(self, tables: dict[str, Any]) -> None:
        intake = self.intake
        used = any(len(table) for table in tables.values())
        seen = Seen(
            processes=intake.process_names,
            categories=intake.unread or intake.spans_of_others,
            used=used,
            gpu_events=len(tables["gpu"]),
        )
        if known := foreign_events(self.path, seen):
            raise known
        intake.damaged += intake.columns.implausible
        if intake.damaged and not used and intake.damaged == intake.num_events:
            raise self._refusal()
        if intake.damaged:
            self.warnings.append(f"{intake.damaged} events could not be read and were left out")
        for category, count in intake.unread.most_common(4):
            self.warnings.append(f"{count} events of category {category!r} were not used")
        for name in ("gpu", "host"):
            negative = tables[name].duration_us < 0
            if negative.any():
                tables[name].duration_us[negative] = 0.0
                self.warnings.append(f"{int(negative.sum())} {name} events had a negative duration")


def _no_trace(path: Path, why: str) -> InputError:
    return InputError(
        f"{path}: no profiler trace: {why}; write one with torch.profiler's export_chrome_trace"
    )


def _nothing_sound(damaged: int) -> str:
    if damaged < 2:
        return "nothing in it is an event"
    return f"none of its {damaged:,} events can be read"


def _closing_bracket(array: bytes, error: Exception) -> int | None:
    """Where the array really closes, when that is what the decoder stumbled over."""
    found = _TRAILING.search(str(error))
    if found is None:
        return None
    # Up to the first character that the decoder did not expect.
    end = array.rfind(b"]", 0, int(found[1]) - 1)
    return end if end >= 0 else None
