"""Side questions that tell a harmless difference of losses from a wrong one, each asked once.

How far does the script part from itself when it is disturbed by as much as rounding, under
other seeds, or when it simply runs again? None of these runs is timed, so they run side by side.
One that fails costs the row that asked its verification, and nothing else.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ridgeline.errors import RidgelineError
from ridgeline.measure.guard.kept import put_back
from ridgeline.measure.live.conductor import Conductor
from ridgeline.measure.wire import Applied, CallsAsSteps, Session, Updates
from ridgeline.records import LossCheck
from ridgeline.techniques import environment_of
from ridgeline.tune.losses import SHAKES, check_losses
from ridgeline.tune.memory import JobMemory
from ridgeline.tune.stack import ENTRY
from ridgeline.tune.updates import WEIGHED_STEPS, settings_fault, update_fault

Trajectory = tuple[list[float], Updates]
"""Losses of a run's first steps, and what its optimizers stepped by."""

STEPS = 40
"""Steps of a trajectory that are compared, at most."""
SHAKEN_STEPS = 24
"""Steps that are compared with a disturbed run, at most: mistakes were planted in as many, and
each more is a step of a run that nobody times."""
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
        calls: CallsAsSteps,
        step_seconds: float = 0.0,
        patience: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._command = command
        self._memory = memory
        self._on_progress = on_progress
        self._calls = calls
        self.patience = patience
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
        updates: tuple[Updates, Updates] = (Updates(), Updates()),
    ) -> LossCheck:
        """Does the candidate keep the equivalence against a baseline that runs with `stack`?

        Side runs are asked for only where the answer depends on them, and never where it is no
        matter (`thorough` is False): what is not faster is kept by no comparison.
        """
        steps = min(len(baseline), len(candidate), self._steps)
        base, other = baseline[:steps], candidate[:steps]
        differ = thorough and bool(steps) and base != other
        if differ and equivalence in SHAKES and base[:SHAKEN_STEPS] != other[:SHAKEN_STEPS]:
            steps = min(steps, SHAKEN_STEPS)
            base, other = baseline[:steps], candidate[:steps]
        shaken: list[float] | None = None
        shaken_updates: Updates | None = None
        if differ and equivalence == "statistical":
            self._seeds(steps)
        elif differ and equivalence in SHAKES:
            shaken, shaken_updates = self._shaken(equivalence, steps, stack)
        compared = partial(
            self._compared, equivalence, base, other, shaken, (*updates, shaken_updates)
        )
        check = compared()
        if differ and not check.passed and self._memory.answers.repeat is None:
            # A run that does not repeat itself is allowed more: only then does it matter.
            self._repeat(steps)
            check = compared()
        return check

    def is_prepared(self, equivalences: Collection[str], stack: Sequence[Applied]) -> bool:
        """Are the disturbed runs known by which these are judged on top of a stack?"""
        known = self._memory.answers.shaken
        return all(_key(one, stack) in known for one in equivalences if one in SHAKES)

    def _compared(
        self,
        equivalence: str,
        base: list[float],
        other: list[float],
        shaken: list[float] | None,
        updates: tuple[Updates, Updates, Updates | None],
    ) -> LossCheck:
        answers = self._memory.answers
        check = check_losses(
            equivalence, base, other, shaken=shaken, seeds=answers.seeds, repeat=answers.repeat
        )
        repeats = answers.repeat is None or answers.repeat == base[: len(answers.repeat)]
        if not check.passed:
            return check
        if base == other or not repeats:
            fault = settings_fault(*updates)
        else:
            fault = update_fault(equivalence, *updates, seeds=answers.seed_updates)
        return check if fault is None else replace(check, passed=False, summary=fault)

    def _repeat(self, steps: int) -> None:
        self._on_progress("running the script once more, to see how well it repeats itself")
        ((self._memory.answers.repeat, _),) = self._run(steps, [repeat_session()])
        self._memory.save()

    def _seeds(self, steps: int) -> None:
        if self._memory.answers.seeds is None:
            self._on_progress(
                "running the script under two other seeds, for the spread of its losses"
            )
            runs = self._run(steps, seed_sessions())
            self._memory.answers.seeds = [losses for losses, _ in runs]
            self._memory.answers.seed_updates = [updates for _, updates in runs]
            self._memory.save()

    def _shaken(
        self, equivalence: str, steps: int, stack: Sequence[Applied]
    ) -> tuple[list[float], Updates | None]:
        key, answers = _key(equivalence, stack), self._memory.answers
        if key not in answers.shaken:
            self._on_progress(
                "running the script disturbed by as much as rounding, to see what that does"
            )
            session = shaken_session(SHAKES[equivalence], stack)
            ((answers.shaken[key], answers.shaken_updates[key]),) = self._run(steps, [session])
            self._memory.save()
        return answers.shaken[key], answers.shaken_updates.get(key)

    def _run(self, steps: int, sessions: list[Session]) -> list[Trajectory]:
        """Nothing where the runs fail: without them the row is not verified."""
        sessions = [replace(session, calls=self._calls) for session in sessions]
        try:
            return trajectories(self._command, steps, sessions, patience_seconds=self.patience())
        except RidgelineError as error:
            self._on_progress(f"that run failed, so nothing can be verified by it: {error}")
            return [([], Updates()) for _ in sessions]


def _key(equivalence: str, stack: Sequence[Applied]) -> str:
    return " ".join([equivalence, *(member.technique for member in stack)])


OFFSETS = (1009, 2003)
"""Added to every seed that the script sets."""


def seed_sessions() -> list[Session]:
    """Runs under other seeds."""
    return [
        Session(fix_seed=True, seed_offset=offset, weighed_steps=WEIGHED_STEPS)
        for offset in OFFSETS
    ]


def repeat_session() -> Session:
    """One more run under the same seed: how well does the script repeat itself?"""
    return Session(fix_seed=True)


def shaken_session(size: float, stack: Sequence[Applied] = ()) -> Session:
    """A run with parameters and gradients disturbed by a relative `size`."""
    return Session(
        fix_seed=True,
        shake=size,
        weighed_steps=WEIGHED_STEPS,
        stack=list(stack),
        environment=environment_of(stack),
    )


def trajectories(
    command: list[str],
    steps: int,
    sessions: list[Session],
    *,
    patience_seconds: float | None = None,
) -> list[Trajectory]:
    """The first `steps` losses of each run, and what its optimizers stepped by.

    All start at once and wait at their first boundary: loading need not be waited for in turn.
    """
    saved = Path(tempfile.mkdtemp(prefix="ridgeline-saved-"))
    kept = str(saved / "files")
    try:
        with ExitStack() as running:
            started = [
                running.enter_context(
                    Conductor(
                        command,
                        replace(session, saved_folder=kept),
                        entry=ENTRY,
                        patience_seconds=patience_seconds,
                    )
                )
                for session in sessions
            ]
            return [_trajectory(conductor, steps) for conductor in started]
    finally:
        put_back(saved / "files")
        shutil.rmtree(saved, ignore_errors=True)


def _trajectory(conductor: Conductor, steps: int) -> Trajectory:
    losses: list[float] = []
    updates = Updates()
    while len(losses) < steps and not conductor.ended:
        reports = conductor.steps(max(1, steps - len(losses)))
        losses += reports[0].losses
        updates = updates.and_then(reports[0].updates)
        if not reports[0].losses:
            break
    return losses[:steps], updates
