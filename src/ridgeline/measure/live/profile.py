"""Measure one script; warm up, time, look closer, and write it down as a `StepProfile` per rank.

Times come from steps in which only the phase clock ran. What explains them (operators, host
lines, memory, communication) comes from short windows after, in the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from time import monotonic

import msgspec

from ridgeline.errors import ScriptError
from ridgeline.hardware.ceilings import Ceilings
from ridgeline.measure.live.alone import judged
from ridgeline.measure.live.assemble import RunWindows, assemble
from ridgeline.measure.live.conductor import ENTRY, Conductor
from ridgeline.measure.live.crash import ScriptFailed, crash_of, told_of_few_steps
from ridgeline.measure.live.few_calls import (
    as_they_are,
    counting_calls,
    repeating,
    told_of_repeats,
)
from ridgeline.measure.live.patience import OutOfPatience
from ridgeline.measure.live.windows import WINDOW, LiveRun, Measurement, MeasurementPlan, Progress
from ridgeline.measure.wire import Session, Waits
from ridgeline.records import StepProfile

CeilingsOf = Callable[[str], Ceilings | None]
"""Tells the ceilings of a device, `cpu` or `cuda`, once it is known what the script runs on."""


Conduct = Callable[[Session], AbstractContextManager[LiveRun]]
"""Gives the run to measure; leaving it decides whether the script goes on to live."""


_EVALUATION_SHARE, _FIRST_STEP_SHARE = 0.6, 0.8
"""Shares of the budget for which an evaluation before the first step is waited for, and the end
of a first step that calls its model again and again; then these calls are measured."""

_MOST_ATTEMPTS = 4
_LOOKS_ONLY = MeasurementPlan(warmup=1, steps=1, window=1, max_sampled=1)
"""Five steps in all."""


def measure(
    command: list[str],
    plan: MeasurementPlan,
    *,
    session: Session | None = None,
    entry: str = ENTRY,
    ceilings: Ceilings | CeilingsOf | None = None,
    on_progress: Progress | None = None,
    conduct: Conduct | None = None,
) -> list[StepProfile]:
    """Profile `command`; one `StepProfile` per rank, rank 0 first.

    A script shorter than the plan is run once more with a plan that fits it; one of a few steps
    is timed in one run and looked at closer in another. A script that makes an optimizer but
    never steps it is measured as inference, and so is one that spends most of the budget on
    calls of its model before it has trained a step. `conduct` gives a run that is alive already,
    or that stays alive afterwards; without it the script is started, and stopped at the end.

    Raises:
        InputError: the script does not exist, fails, or never steps.
        ChildDied: it was killed.
    """
    attempt = _Attempt(plan=plan, session=session or Session())
    on_progress = on_progress or _silent
    for _ in range(_MOST_ATTEMPTS):
        start = conduct or _starter(command, attempt.plan, entry, on_progress)
        windows, again = RunWindows(), None
        try:
            windows = _measure_once(start(attempt.session), attempt.plan, on_progress)
        except ScriptFailed as failed:
            if not attempt.session.calls.repeats:
                raise judged(command, failed, on_progress) from None
            again = attempt.without_repeats(failed)
        again = again or attempt.after(windows)
        if again is None:
            break
        on_progress(again.why)
        attempt = again
    session, total = attempt.session, windows.seen_steps
    if windows.ended and not windows.complete:
        session = as_they_are(session)  # no call can be repeated, as a run has shown by now
    windows.settle()
    if not windows.timed or not windows.timed[0].steps:
        crash = crash_of(0, windows.output)  # of a process of its own, perhaps: it did not fail
        raise ScriptError(
            told_of_few_steps(" ".join(command), total, crash, calls=session.calls.few),
            details=crash.traceback,
        )
    if plan.window and not attempt.plan.window:
        on_progress("running it once more, to look closer")
        windows.looks = _measure_once(start(session), _LOOKS_ONLY, on_progress).looks
    windows.tell_how_few()
    windows.warnings += told_of_repeats(session.calls)
    if callable(ceilings):
        ceilings = ceilings("cuda" if windows.device.startswith("cuda") else "cpu")
    return assemble(command, windows, ceilings)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """How a script is run to be measured; what a run shows of it may ask for another."""

    plan: MeasurementPlan
    session: Session
    may_repeat: bool = True
    """May each call of the model be made again and again, should there be few?"""
    why: str = ""
    """Why this one follows another, for the user."""

    def after(self, windows: RunWindows) -> _Attempt | None:
        """The attempt that its run asks for; None: it is what it can be."""
        calls, total = self.session.calls, windows.seen_steps
        if windows.forwards_without_steps and not calls.few:
            return replace(
                self,
                session=repeating(counting_calls(self.session), windows),
                may_repeat=False,
                why="no step was seen: measuring again, with each call of the model as a step",
            )
        if not windows.ended or windows.complete:
            return None
        again = repeating(self.session, windows)
        if self.may_repeat and again is not self.session:
            why = f"it calls its model {total + 1} times: measuring again, each made again"
            return replace(self, session=again, may_repeat=False, why=why)
        shorter = _plan_for(self.plan, total)
        if shorter == self.plan:
            return None
        return replace(
            self,
            session=as_they_are(self.session),
            plan=shorter,
            why=f"the script ends after {total} steps: measuring again with a plan that fits",
        )

    def without_repeats(self, failed: ScriptFailed) -> _Attempt:
        """The attempt after one that failed with its calls repeated."""
        why = f"with its calls repeated it fails ({failed}): measuring without"
        return replace(self, session=as_they_are(self.session), may_repeat=False, why=why)


def _silent(text: str) -> None:
    """Nobody wants to know."""


def _plan_for(plan: MeasurementPlan, total: int) -> MeasurementPlan:
    """A plan for a script of `total` steps; the first one always leads in."""
    if total < 4:
        return replace(plan, warmup=0, steps=max(total - 1, 1), window=0)
    window = WINDOW if total >= 24 else 2 if total >= 12 else 0
    usable = total - 2 - 2 * window if window else total - 1
    sampled = max(window, usable // 4) if window else 0
    usable -= sampled
    warmup = min(max(usable // 4, 1), 5)
    steps = max(usable - warmup, 1)
    return replace(plan, warmup=warmup, steps=steps, window=window, max_sampled=sampled)


def _starter(
    command: list[str], plan: MeasurementPlan, entry: str, on_progress: Progress
) -> Conduct:
    def start(session: Session) -> Conductor:
        return Conductor(
            command,
            msgspec.structs.replace(session, waits=_waits(plan.budget_seconds)),
            entry=entry,
            patience_seconds=plan.budget_seconds,
            on_progress=on_progress,
        )

    return start


def _waits(budget_seconds: float) -> Waits:
    """How long a script may call its model before it trains, when it is started now."""
    now = monotonic()
    return Waits(
        since=now,
        training_until=now + _EVALUATION_SHARE * budget_seconds,
        step_until=now + _FIRST_STEP_SHARE * budget_seconds,
    )


def _measure_once(
    running: AbstractContextManager[LiveRun], plan: MeasurementPlan, on_progress: Progress
) -> RunWindows:
    started = monotonic()
    windows = RunWindows()
    with running as run:
        on_progress("starting the script")
        measurement = Measurement(
            run=run, plan=plan, windows=windows, on_progress=on_progress, started=started
        )
        try:
            measurement.take_windows()
        except OutOfPatience as late:
            if not windows.seconds():
                if not windows.fall_back_on(run.first_step):
                    raise
                windows.warnings.append(f"no other step ended: {late}")
        finally:
            windows.output = run.output
        windows.complete = bool(windows.timed) and (not plan.window or "profiler" in windows.tried)
        windows.ranks = len(run.hellos) or 1
        windows.device = run.hellos[0].device if run.hellos else "cpu"
    windows.outcome = run.outcome
    return windows
