"""Side questions that tell a harmless difference of losses from a wrong one, each asked once.

How far does the script part from itself when it is disturbed by as much as rounding, under
other seeds, or when it simply runs again? None of these runs is timed. One that fails costs the
row that asked its verification, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline.errors import RidgelineError
from ridgeline.measure.wire import Applied, Session
from ridgeline.records import LossCheck
from ridgeline.tune.losses import SHAKES, check_losses
from ridgeline.tune.memory import JobMemory
from ridgeline.tune.seeds import repeat_session, seed_sessions, shaken_session, trajectories

STEPS = 40
"""Steps of a trajectory that are compared, at most."""
LEAST_STEPS = 16
AFFORDABLE_SECONDS = 8.0
"""What the steps of one side run may take; a slow script is compared over fewer of them."""


class Verifier:
    """Compares losses of one script; remembers what it had to run for that."""

    def __init__(
        self,
        command: list[str],
        memory: JobMemory,
        on_progress: Callable[[str], None],
        *,
        step_seconds: float = 0.0,
        patience: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._command = command
        self._memory = memory
        self._on_progress = on_progress
        self._patience = patience
        """How long a side run may keep silent by now."""
        affordable = int(AFFORDABLE_SECONDS / step_seconds) if step_seconds else STEPS
        self._steps = max(LEAST_STEPS, min(STEPS, affordable))

    def check(
        self,
        equivalence: str,
        baseline: list[float],
        candidate: list[float],
        *,
        stack: Sequence[Applied] = (),
        thorough: bool = True,
    ) -> LossCheck:
        """Does the candidate keep the equivalence against a baseline that runs with `stack`?

        Side runs are asked for only where the answer depends on them, and never where it is no
        matter (`thorough` is False): what is not faster is kept by no comparison.
        """
        steps = min(len(baseline), len(candidate), self._steps)
        base, other = baseline[:steps], candidate[:steps]
        differ = thorough and bool(steps) and base != other
        shaken: list[float] | None = None
        if differ and equivalence == "statistical":
            self._seeds(steps)
        elif differ and equivalence in SHAKES:
            shaken = self._shaken(equivalence, steps, stack)
        check = self._compared(equivalence, base, other, shaken)
        if differ and not check.passed and self._memory.answers.repeat is None:
            # A run that does not repeat itself is allowed more: only then does it matter.
            self._repeat(steps)
            check = self._compared(equivalence, base, other, shaken)
        return check

    def _compared(
        self, equivalence: str, base: list[float], other: list[float], shaken: list[float] | None
    ) -> LossCheck:
        answers = self._memory.answers
        return check_losses(
            equivalence, base, other, shaken=shaken, seeds=answers.seeds, repeat=answers.repeat
        )

    def _repeat(self, steps: int) -> None:
        self._on_progress("running the script once more, to see how well it repeats itself")
        (self._memory.answers.repeat,) = self._run(steps, [repeat_session()])
        self._memory.save()

    def _seeds(self, steps: int) -> None:
        if self._memory.answers.seeds is None:
            self._on_progress(
                "running the script under two other seeds, for the spread of its losses"
            )
            self._memory.answers.seeds = self._run(steps, seed_sessions())
            self._memory.save()

    def _shaken(self, equivalence: str, steps: int, stack: Sequence[Applied]) -> list[float]:
        key = " ".join([equivalence, *(member.technique for member in stack)])
        found = self._memory.answers.shaken
        if key not in found:
            self._on_progress(
                "running the script disturbed by as much as rounding, to see what that does"
            )
            (found[key],) = self._run(steps, [shaken_session(SHAKES[equivalence], stack)])
            self._memory.save()
        return found[key]

    def _run(self, steps: int, sessions: list[Session]) -> list[list[float]]:
        """Nothing where the runs fail: without them the row is not verified."""
        try:
            return trajectories(self._command, steps, sessions, patience_seconds=self._patience())
        except RidgelineError as error:
            self._on_progress(f"that run failed, so nothing can be verified by it: {error}")
            return [[] for _ in sessions]
