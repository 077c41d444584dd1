"""The events of a Kineto file as text, to be written again: `copy_events(path, pieces, …)`.

It is the reading of `read_kineto` without its columns: pieces of the file, each cut at an event's
border. A batch that is whole JSON is passed on as it stands; one that is damaged goes through the
reader's own mending, so what is copied is what is read. Memory is bounded by the piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.trace.formats.kineto.columns import Columns
from ridgeline.trace.formats.kineto.document import read_document
from ridgeline.trace.formats.kineto.events import split_raw
from ridgeline.trace.formats.kineto.intake import Intake
from ridgeline.trace.formats.kineto.reading import KinetoReading

Begin = Callable[[bytes], None]
"""Is given the text of the document before its events, once and first."""
Take = Callable[[bytes, int], None]
"""Is given the text of some events, without brackets around them, and how many they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedDocument:
    """What a document says besides its events."""

    members: dict[str, Any]
    warnings: list[str]
    """What could not be copied, and why."""


def copy_events(path: Path, pieces: Iterator[bytes], begin: Begin, take: Take) -> CopiedDocument:
    """Pass on every event of a document.

    Raises:
        InputError: There is no event in it.
    """
    copying = _Copying(path=path, intake=_Passing(columns=Columns(details=False), to=take))
    copying.begin = begin
    copying.run(pieces)
    document, shortened = read_document(copying.before, bytes(copying.after), ended=copying.ended)
    warnings = list(copying.warnings)
    if shortened:
        warnings.append("ignored what follows the events: it is no valid JSON")
    if copying.intake.damaged:
        warnings.append(f"{copying.intake.damaged} events could not be read and were left out")
    members = {key: value for key, value in document.items() if key != "traceEvents"}
    return CopiedDocument(members=members, warnings=warnings)


class _Copying(KinetoReading):
    begin: Begin

    def _begin(self, text: bytes, start: int) -> None:
        super()._begin(text, start)
        self.begin(self.before)


@dataclass(slots=True)
class _Passing(Intake):
    """Passes events on, and keeps none."""

    to: Take = lambda text, count: None  # noqa: ARG005

    def take(self, array: bytes | memoryview) -> None:
        text = bytes(array)
        self._pass_on(text[1:-1], len(split_raw(text)))

    def take_each(self, events: Sequence[msgspec.Raw | bytes]) -> None:
        self._pass_on(b",\n".join(bytes(event) for event in events), len(events))

    def _pass_on(self, text: bytes, count: int) -> None:
        self.num_events += count
        if not text.isascii():  # letters are looked at only where they are decoded
            text = text.decode("utf-8", "replace").encode()
        if count:
            self.to(text.strip(), count)
