"""What happened to a run and when: one JSON line per event, over all starts, in `events.jsonl`.

Each event names what has just ended, so that the time since the event before is its own. Steps
are written once a second at most, and before every other event: a crash loses a second of them.

Batches that a run leaves out, because a step on them was rolled back, lie in `skipped.jsonl`. No
torch here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from ridgeline.records.appended import AppendedFile, Tail, read_lines
from ridgeline.train.folder import EVENTS, SKIPPED

Kind = Literal[
    "launched",  # `ridgeline train` was called; `note` says what is odd about the machine
    "started",  # rank 0 began
    "ready",  # the model stands at `step`; steps begin
    "step",  # so many are done
    "checkpoint",  # a save no longer holds the run up
    "evaluated",
    "drifted",  # a phase has become slower; `note` says which and by how much
    "hung",  # `note` says who and where
    "rolled_back",  # all ranks start again without a batch; `note` says which and why
    "stopped",  # asked to; `note` says by what
    "finished",
]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the file."""

    kind: Kind
    time: float
    """When it happened, in seconds since 1970."""
    step: int = 0
    """Optimizer steps that were done."""
    note: str = ""


class EventLog:
    """A writer of events; several processes may append, each line is one write."""

    def __init__(
        self, folder: Path, *, clock: Callable[[], float] = time.time, every_seconds: float = 1.0
    ) -> None:
        """Open the log in the folder of a run.

        Args:
            folder: Where the run lives.
            clock: Seconds since 1970.
            every_seconds: Steps are written no more often.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._file = AppendedFile(folder / EVENTS)
        self._clock = clock
        self._every_seconds = every_seconds
        self._written = clock()
        self._pending: Event | None = None

    def step(self, step: int) -> None:
        """Note that so many steps are done."""
        self._pending = Event(kind="step", time=self._clock(), step=step)
        if self._pending.time - self._written >= self._every_seconds:
            self._flush()

    def write(self, kind: Kind, step: int = 0, note: str = "") -> None:
        """Write any other event, and before it the step that is pending."""
        self._flush()
        self._append(Event(kind=kind, time=self._clock(), step=step, note=note))

    @contextmanager
    def during(self, kind: Kind, step: int) -> Iterator[None]:
        """Count what is inside as no part of a step."""
        self._flush()
        yield
        self.write(kind, step)

    def close(self) -> None:
        """Write what is pending, and close the file."""
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._append(pending)

    def _append(self, event: Event) -> None:
        self._written = event.time
        self._file.append(msgspec.json.encode(event))


def event_tail(folder: Path) -> Tail[Event]:
    """A reader that begins before the first event of the run in `folder`."""
    return Tail(folder / EVENTS, msgspec.json.Decoder(Event).decode)


def read_events(folder: Path) -> list[Event]:
    """All events of a run; none where there is no log.

    Raises:
        InputError: A line is no event.
    """
    return event_tail(folder).read()


class SkippedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is left out: one line of its file."""

    step: int
    """Optimizer steps that were done before it."""
    samples: int
    """The first sample of the batch, in the order of the run."""
    why: str


def skipped_batches(folder: Path) -> list[SkippedBatch]:
    """The skipped batches, in the order in which the run met them."""
    return read_lines(folder / SKIPPED, msgspec.json.Decoder(SkippedBatch).decode)


def skip(folder: Path, batch: SkippedBatch) -> None:
    """Leave a batch out from now on; on disk on return."""
    file = AppendedFile(folder / SKIPPED)
    try:
        file.append(msgspec.json.encode(batch), sync=True)
    finally:
        file.close()
