"""What keeps watch over one rank from its first step to its last, put together for the session."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.records.recipe import Recipe
from ridgeline.train.ranks import Ranks
from ridgeline.train.survive.events import EventLog, read_events
from ridgeline.train.survive.goodput import account
from ridgeline.train.survive.guard import Guard
from ridgeline.train.survive.stop import StopRequest
from ridgeline.train.survive.watchdog import Watchdog, shared_store

if TYPE_CHECKING:
    from ridgeline.records.training_run import Goodput
    from ridgeline.train.loop import Trainer

TERMINATED_EXIT_CODE = 143
"""What a rank ends with that was sent SIGTERM and has saved: 128 + 15, as a shell has it."""

_STAND_BY_SECONDS = 1.0
_NEVER = "survive/never"


@dataclass(kw_only=True)
class Vigil:
    """What the session hands to the loop."""

    folder: Path
    guard: Guard
    events: EventLog | None
    """The log of rank 0; None elsewhere."""
    request: StopRequest
    """Set once it stands; until then nothing moves that could be watched."""

    def end(self, step: int, stopped: str) -> Goodput | None:
        """Write the last event of this start; where the time of all starts went, on rank 0."""
        if self.events is None:
            return None
        self.events.write("stopped" if stopped else "finished", step, stopped)
        return account(read_events(self.folder))

    def notes(self) -> tuple[str, ...]:
        """What happened to the run so far."""
        told = ("ready", "checkpoint", "hung", "rolled_back", "stopped")
        return tuple(e.note for e in read_events(self.folder) if e.kind in told and e.note)


@contextmanager
def vigil(recipe: Recipe, folder: Path, ranks: Ranks) -> Iterator[Vigil]:
    """Keep watch over what is inside; `begin` starts the watchdog."""
    request = StopRequest(folder)
    scaled = recipe.layout.precision == "fp16"
    guard = Guard(
        recipe.survive,
        ranks,
        folder,
        request=request,
        every=recipe.communication.sync_every,
        norm_may_overflow=scaled,
    )
    events = EventLog(folder) if ranks.rank == 0 else None
    try:
        yield Vigil(folder=folder, guard=guard, events=events, request=request)
    finally:
        request.close()
        if events is not None:
            events.close()


@contextmanager
def end_if_hung(keeper: Vigil, trainer: Trainer, recipe: Recipe, ranks: Ranks) -> Iterator[None]:
    """Make steps inside; the process ends when no rank moves any more."""
    seconds = recipe.survive.hang_seconds
    if seconds == 0.0:
        yield
        return

    def where() -> tuple[int, str, int]:
        phases = trainer.interval.phases
        return trainer.course.step, phases.current, phases.moves

    def report(line: str) -> None:
        log = EventLog(keeper.folder)
        log.write("hung", trainer.course.step, line)
        log.close()
        sys.stderr.write(f"ridgeline: {line}\n")
        sys.stderr.flush()

    watchdog = Watchdog(
        rank=ranks.rank,
        world=ranks.world,
        hang_seconds=seconds,
        where=where,
        report=report,
        store=shared_store(ranks.world),
        computes_on_host=ranks.device.type == "cpu",
    )
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()


def stand_by() -> None:
    """Wait as a rank that the layout has no place for, as long as the others have their store."""
    store, waiting = shared_store(2), threading.Event()
    assert store is not None
    try:
        while not store.check([_NEVER]):
            waiting.wait(_STAND_BY_SECONDS)
    except (RuntimeError, OSError):
        # Rank 0, which holds the store, has ended; torchrun knows how.
        return
