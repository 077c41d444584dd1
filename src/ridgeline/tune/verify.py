"""Side questions that tell a harmless difference of losses from a wrong one, each asked once.

How far does the script part from itself when it is disturbed by as much as rounding, under
other seeds, or when it simply runs again? None of these runs is timed. One that fails costs the
row that asked its verification, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ridgeline.errors import RidgelineError
from ridgeline.measure.wire import Applied
from ridgeline.records import LossCheck
from ridgeline.tune.losses import SHAKES, check_losses
from ridgeline.tune.memory import Memory
from ridgeline.tune.seeds import repeat_losses, seed_losses, shaken_losses

T = TypeVar("T")
STEPS = 40
"""Of a trajectory that is compared, at most."""


class Verifier:
    """Compares losses of one script; remembers what it had to run for that."""

    def __init__(self, command: list[str], memory: Memory, say: Callable[[str], None]) -> None:
        self._command = command
        self._memory = memory
        self._say = say

    def check(
        self,
        promise: str,
        baseline: list[float],
        candidate: list[float],
        *,
        stack: Sequence[Applied] = (),
    ) -> LossCheck:
        """Does the candidate keep the promise against a baseline that runs with `stack`?"""
        steps = min(len(baseline), len(candidate), STEPS)
        shaken: list[float] | None = None
        if steps and baseline[:steps] != candidate[:steps]:
            self._repeat(steps)
            if promise == "statistical":
                self._seeds(steps)
            elif promise in SHAKES:
                shaken = self._shaken(promise, steps, stack)
        answers = self._memory.answers
        return check_losses(
            promise,
            baseline[:steps],
            candidate[:steps],
            shaken=shaken,
            seeds=answers.seeds,
            repeat=answers.repeat,
        )

    def _repeat(self, steps: int) -> None:
        if self._memory.answers.repeat is None:
            self._say("running the script once more, to see how well it repeats itself")
            self._memory.answers.repeat = self._asked(lambda: repeat_losses(self._command, steps))
            self._memory.save()

    def _seeds(self, steps: int) -> None:
        if self._memory.answers.seeds is None:
            self._say("running the script under two other seeds, for the spread of its losses")
            self._memory.answers.seeds = self._asked(lambda: seed_losses(self._command, steps))
            self._memory.save()

    def _shaken(self, promise: str, steps: int, stack: Sequence[Applied]) -> list[float]:
        key = " ".join([promise, *(member.technique for member in stack)])
        found = self._memory.answers.shaken
        if key not in found:
            self._say("running the script disturbed by as much as rounding, to see what that does")
            found[key] = self._asked(
                lambda: shaken_losses(self._command, steps, SHAKES[promise], stack)
            )
            self._memory.save()
        return found[key]

    def _asked(self, run: Callable[[], list[T]]) -> list[T]:
        """Nothing where the run fails: without it the row is not verified."""
        try:
            return run()
        except RidgelineError as error:
            self._say(f"that run failed, so nothing can be verified by it: {error}")
            return []
