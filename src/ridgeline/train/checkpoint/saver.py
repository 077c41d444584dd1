"""Save a run's checkpoints beside the training, and load the newest good one again.

A save copies the state to host memory in a thread, while the next step's passes run, and must be
through with that before the next update; a second thread then writes, on a process group of its
own. State that lies on disk is copied from file to file, while the run waits. One save is under
way at a time. A disk that is full, or away, costs that checkpoint and a line in the log; anything
else that goes wrong in a save ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from ridgeline.errors import RidgelineError
from ridgeline.records.recipe import Recipe
from ridgeline.train.checkpoint.schedule import SaveSchedule
from ridgeline.train.checkpoint.state import RunState
from ridgeline.train.checkpoint.store import (
    Checkpoint,
    Damaged,
    FileSum,
    Manifest,
    Store,
    verify,
)
from ridgeline.train.checkpoint.writer import SealingWriter
from ridgeline.train.ranks import Ranks

_PATIENCE_SECONDS = 0.5
"""Where a write takes no longer it is waited for before the next update: a crash then loses no more
than an interval. A longer one goes on beside the training, and a crash loses its time too."""


@dataclass(kw_only=True)
class _Flight:
    """A save under way."""

    step: int
    begun: float
    stall_seconds: float
    staged: Future[None]
    written: Future[Any]
    waited_for: bool = False
    ended: float = 0.0

    def note_end(self, _: Future[Any]) -> None:
        self.ended = perf_counter()


class Saver:
    """The checkpoints of one run. Every rank must make one, and call its methods alike."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        ranks: Ranks,
        state: RunState,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Begin for a run that stands, built, at its first step.

        Args:
            recipe: Its `checkpoint` table, and all of it for the manifest.
            folder: Where the run lives.
            ranks: This process's place.
            state: What is saved.
            note: Takes one line for the log; called on the first rank.
        """
        self._recipe = recipe
        self._ranks = ranks
        self._state = state
        self._note = note if ranks.rank == 0 else lambda _: None
        self._store = Store(folder)
        self.schedule = SaveSchedule(recipe, ranks)
        # A group of its own: its collectives run in a thread, and must not meet the training's.
        self._group = dist.new_group(backend="gloo")
        cuda = ranks.device.type == "cuda"
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=cuda,
                use_shared_memory=False,
                use_async_staging=True,
                use_non_blocking_copy=cuda,
            )
        )
        # A copy of what lies on disk would need the memory that it is on disk to spare.
        self._in_place = recipe.layout.offload == "optimizer-on-disk"
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._flight: _Flight | None = None
        self._write_seconds: float | None = None
        self._made = 0
        self.stall_seconds = 0.0
        """Seconds for which all saves so far held the run up."""
        self.good_step: int | None = None
        """The step of the newest checkpoint that this run made or went on from."""

    def load_newest(self) -> Manifest | None:
        """Go on from the newest checkpoint that is whole and unchanged; None: there is none.

        Raises:
            RidgelineError: There are checkpoints, and none is good.
        """
        self.wait()
        if self._ranks.rank == 0:
            for name in self._store.sweep():
                self._note(f"removed {name}, which a crash had left half written")
        bad: list[Damaged] = []
        for found in self._candidates():
            damage = found if isinstance(found, Damaged) else self._damage(found)
            if damage is None:
                assert isinstance(found, Checkpoint)
                self._leave_out(bad, found)
                return self._go_on_from(found)
            bad.append(damage)
        if bad:
            raise RidgelineError(
                f"no checkpoint is good: {bad[0]}; --fresh deletes them and starts anew"
            )
        self.schedule.begin(0)
        return None

    def due(self, step: int) -> bool:
        """Whether to save now that so many steps are done; the same on every rank."""
        self._look()
        return self._recipe.checkpoint.keep > 0 and self.schedule.due(step)

    def save(self, step: int, tokens: int, *, wait: bool = False) -> None:
        """Begin to save the state after `step`; with `wait`, return when it is on the disk."""
        if self._recipe.checkpoint.keep == 0 or self.good_step == step:
            return
        begun = perf_counter()
        same = self._flight is not None and self._flight.step == step
        self.wait()
        if same and self.good_step == step:
            return
        self.schedule.begin(step)
        writer = SealingWriter(
            self._store.place(step),
            begin=lambda: self._store.begin(step),
            seal=lambda files: self._seal(step, tokens, files),
        )
        staged, written = self._begin(writer)
        self._flight = _Flight(
            step=step,
            begun=begun,
            stall_seconds=perf_counter() - begun,
            staged=staged,
            written=written,
        )
        self._flight.written.add_done_callback(self._flight.note_end)
        if wait or self._in_place:
            self.wait()

    def _begin(self, writer: SealingWriter) -> tuple[Future[None], Future[Any]]:
        """What ends when the state was copied, and when it is on the disk."""
        state = self._state.gather()
        if self._in_place:
            group = self._group
            written: Future[Any] = self._writing.submit(
                lambda: dcp.save(state, storage_writer=writer, process_group=group)
            )
            return written, written
        response = dcp.async_save(
            state, storage_writer=writer, process_group=self._group, async_stager=self._stager
        )
        assert isinstance(response, dcp.state_dict_saver.AsyncSaveResponse)
        return response.staging_completion, response.upload_completion

    def holds_up(self) -> bool:
        """Whether `before_update` has to wait."""
        flight = self._flight
        if flight is None or flight.written.done():
            return False
        return not flight.staged.done() or self._soon(flight)

    def before_update(self) -> None:
        """The weights are about to change: what is being copied comes first."""
        flight = self._flight
        if flight is None:
            return
        begun = perf_counter()
        flight.staged.result()
        if self._soon(flight):
            with suppress(TimeoutError):
                flight.written.exception(timeout=_PATIENCE_SECONDS)
            flight.waited_for = True
        flight.stall_seconds += perf_counter() - begun

    def _soon(self, flight: _Flight) -> bool:
        """Whether the write is waited for, the first time that the weights change after it."""
        return (self._write_seconds or 0.0) < _PATIENCE_SECONDS and not flight.waited_for

    def wait(self) -> None:
        """Wait until nothing is under way."""
        flight = self._flight
        if flight is None:
            return
        begun = perf_counter()
        _outcome(flight)
        flight.stall_seconds += perf_counter() - begun
        self._look()

    def close(self) -> None:
        """Finish what is under way; nothing more is saved."""
        self.wait()
        self._stager.close()
        self._writing.shutdown()

    def _look(self) -> None:
        """Take note of a save that has ended."""
        flight = self._flight
        if flight is None or not flight.written.done():
            return
        self._flight = None
        self.stall_seconds += flight.stall_seconds
        failure = _outcome(flight)
        if failure is None:
            self.good_step = flight.step
            self._made += 1
            self._write_seconds = (flight.ended or perf_counter()) - flight.begun
            self.schedule.note_measured(flight.stall_seconds, self._write_seconds)
            return
        last = f"that of step {self.good_step} stays" if self.good_step else "there is no other yet"
        self._note(
            f"the checkpoint of step {flight.step} was not written: {failure}; {last}, and the run"
            " goes on and tries again at the next"
        )
        if self._ranks.rank == 0:
            self._store.discard(self._store.place(flight.step))

    def _seal(self, step: int, tokens: int, files: dict[str, FileSum]) -> None:
        """Seal a checkpoint whose files are on the disk; on rank 0, in the writing thread."""
        self._store.seal(
            self._store.place(step),
            Manifest(
                step=step,
                tokens=tokens,
                number=self._made,
                world=self._ranks.world,
                time=time.time(),
                recipe=msgspec.to_builtins(self._recipe),
                files=files,
            ),
        )
        self._store.retain(self._recipe.checkpoint.keep, self._recipe.checkpoint.keep_every)

    def _candidates(self) -> list[Checkpoint | Damaged]:
        """The checkpoints that the first rank sees."""
        found: list[Any] = [None]
        if self._ranks.rank == 0:
            found = [[_told(one) for one in self._store.found()]]
        dist.broadcast_object_list(found, src=0, group=self._group)
        return [Damaged(one[0], one[1]) if isinstance(one, tuple) else one for one in found[0]]

    def _damage(self, checkpoint: Checkpoint) -> Damaged | None:
        """What is wrong with its files; each rank reads a part of them."""
        mine = ""
        try:
            verify(checkpoint, slice(self._ranks.rank, None, self._ranks.world))
        except Damaged as damage:
            mine = str(damage)
        told: list[str] = [""] * self._ranks.world
        dist.all_gather_object(told, mine, group=self._group)
        first = next((one for one in told if one), "")
        return Damaged(checkpoint.path, first) if first else None

    def _leave_out(self, bad: list[Damaged], used: Checkpoint) -> None:
        for damage in bad:
            self._note(f"{damage}; step {used.step} is used instead, and the damaged set aside")
            if self._ranks.rank == 0:
                self._store.set_aside(damage.path)

    def _go_on_from(self, checkpoint: Checkpoint) -> Manifest:
        manifest = checkpoint.manifest
        self._state.restore(checkpoint.path, manifest.world, self._group)
        self.good_step, self._made = manifest.step, manifest.number + 1
        self.schedule.begin(manifest.step)
        text = f"resumes from step {manifest.step}, {checkpoint.path}"
        if manifest.world != self._ranks.world:
            text += f", written by {manifest.world} ranks"
        self._note(text)
        return manifest


def _told(found: Checkpoint | Damaged) -> Checkpoint | tuple[Path, str]:
    """What can be sent to another rank."""
    return (found.path, str(found)) if isinstance(found, Damaged) else found


def _outcome(flight: _Flight) -> str | None:
    """Wait for the end of a save: None, or what the disk had against it."""
    failure = flight.written.exception()
    if failure is None:
        return None
    if not isinstance(failure, CheckpointException):
        raise failure
    for cause, _ in failure.failures.values():
        if not isinstance(cause, OSError):
            raise cause from failure
    rank, (cause, _) = min(failure.failures.items())
    where = f" on rank {rank}" if len(failure.failures) > 1 or rank else ""
    return f"{getattr(cause, 'strerror', None) or cause}{where}"
