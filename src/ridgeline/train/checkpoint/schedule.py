"""When a run is saved: every so many steps, every so many seconds, or as Young and Daly say.

Every rank must save after the same step, and clocks differ, so the first rank's decides. It is not
asked after every step: it says at which step it wants to be asked again, half of what is left by
its own measure. An hour of tenth-seconds takes sixteen questions.

Young and Daly's interval (`ridgeline.cost.checkpoint_interval`) is worked out anew after every
save, from how long the save held the run up; it is never shorter than the save takes to reach the
disk, because only one is under way at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import torch
import torch.distributed as dist

from ridgeline.cost.checkpoint_interval import cluster_mtbf_seconds, daly_interval_seconds
from ridgeline.errors import InputError
from ridgeline.records.recipe import Recipe
from ridgeline.train.ranks import Ranks

_DEVICE_MTBF_SECONDS = 54 * 86400 / 419 * 16384
"""419 unexpected interruptions in 54 days of 16,384 devices: 2407.21783, section 3.3.4."""
_LONGEST_SECONDS = 1800.0
"""People stop runs more often than devices fail."""
_SHORTEST_SECONDS = 1e-3


class SaveSchedule:
    """The decision after each step whether to save. All ranks must ask alike."""

    def __init__(
        self, recipe: Recipe, ranks: Ranks, clock: Callable[[], float] = monotonic
    ) -> None:
        """Begin for a run that begins or goes on now.

        Raises:
            InputError: The recipe's table contradicts itself.
        """
        wanted = recipe.checkpoint
        check_schedule(recipe)
        self._every_steps = wanted.every_steps
        self._given = wanted.every_seconds is not None
        self._interval_seconds = wanted.every_seconds
        self._mtbf_seconds = wanted.mean_seconds_between_failures or cluster_mtbf_seconds(
            _DEVICE_MTBF_SECONDS, ranks.world
        )
        self._ranks = ranks
        self._clock = clock
        self._begun_seconds = clock()
        """The time at which the last save began, or the run."""
        self._begun_step = 0
        self._ask_at = 0
        self._first = True

    @property
    def interval_seconds(self) -> float | None:
        """Seconds between saves; None where it goes by steps, or rank 0 has measured none yet."""
        return None if self._every_steps else self._interval_seconds

    def begin(self, step: int) -> None:
        """Note that a save begins after this step, or that the run stands here."""
        self._begun_step = step
        self._ask_at = step + 1
        self._begun_seconds = self._clock()

    def due(self, step: int) -> bool:
        """Whether to save now that so many steps are done."""
        if self._every_steps:
            return step % self._every_steps == 0
        if step < self._ask_at:
            return False
        now, self._ask_at = self._first_ranks(step)
        self._first = self._first and not now
        return now

    def note_measured(self, stall_seconds: float, write_seconds: float) -> None:
        """Note how long a save held the run up, and how long it was under way; on rank 0."""
        if self._every_steps or self._given:
            return
        best = daly_interval_seconds(max(stall_seconds, _SHORTEST_SECONDS), self._mtbf_seconds)
        self._interval_seconds = max(min(best, _LONGEST_SECONDS), write_seconds)

    def _first_ranks(self, step: int) -> tuple[bool, int]:
        """Whether the first rank saves now, and at which step it wants to be asked again."""
        answer = self._answer(step)
        if self._ranks.world > 1:
            both = torch.tensor(answer, device=self._ranks.device)
            dist.broadcast(both, src=0)
            answer = both.tolist()
        return bool(answer[0]), int(answer[1])

    def _answer(self, step: int) -> list[int]:
        done = max(1, step - self._begun_step)
        if self._interval_seconds is None:
            # The first save shows what one costs; until it is through, nothing is known.
            return [int(self._first), step + done]
        passed = self._clock() - self._begun_seconds
        each = max(passed / done, 1e-9)
        left = self._interval_seconds - passed
        # Half a step too early is as near as half a step too late.
        return [int(left <= each / 2), step + max(1, int(left / each / 2))]


def check_schedule(recipe: Recipe) -> None:
    """Refuse a table that contradicts itself.

    Raises:
        InputError: It names the key.
    """
    wanted = recipe.checkpoint
    if wanted.every_steps is not None and wanted.every_seconds is not None:
        raise InputError("checkpoint.every_steps and checkpoint.every_seconds: give one of them")
    for name in ("every_steps", "every_seconds", "mean_seconds_between_failures"):
        value = getattr(wanted, name)
        if value is not None and value <= 0:
            raise InputError(f"checkpoint.{name} is {value}; it must exceed 0, or be left out")
    for name in ("keep", "keep_every"):
        if getattr(wanted, name) < 0:
            raise InputError(f"checkpoint.{name} is {getattr(wanted, name)}; it is 0 or more")
