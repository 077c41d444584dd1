"""Measure one script; warm up, time, look closer, and write it down as a `StepProfile` per rank.

Times come from steps in which only the phase clock ran. What explains them (operators, host
lines, memory, communication) comes from short windows after, in the same run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from time import monotonic
from typing import Protocol

import msgspec

from ridgeline.errors import InputError, ScriptError
from ridgeline.hardware.ceilings import Ceilings
from ridgeline.measure.guard.guardian import Outcome
from ridgeline.measure.live.alone import judged
from ridgeline.measure.live.assemble import RunWindows, assemble
from ridgeline.measure.live.conductor import ENTRY, Conductor
from ridgeline.measure.live.crash import ScriptFailed, crash_of, told_of_few_steps
from ridgeline.measure.live.operator_times import steps_to_profile
from ridgeline.measure.live.patience import OutOfPatience
from ridgeline.measure.live.steps import first_look
from ridgeline.measure.statistics.intervals import is_level, is_steady
from ridgeline.measure.wire import Hello, Instrument, Report, Session, StepTimes, Waits
from ridgeline.records import StepProfile

Progress = Callable[[str], None]
CeilingsOf = Callable[[str], Ceilings | None]
"""Tells the ceilings of a device, `cpu` or `cuda`, once it is known what the script runs on."""


class LiveRun(Protocol):
    """A run of the script that takes orders: a `Conductor`, or whoever passes them on to one."""

    @property
    def ended(self) -> bool:
        """The script ran to its own end."""

    @property
    def hellos(self) -> list[Hello]:
        """Who said hello, one per rank."""

    @property
    def first_step(self) -> list[Report]:
        """The very first step, one report per rank; empty before it has ended."""

    @property
    def output(self) -> str:
        """The end of what the script printed."""

    @property
    def outcome(self) -> Outcome | None:
        """How the user's files were protected; None as long as the run goes on."""

    def begin(self) -> list[Report]:
        """Wait for the script's very first step, as `Conductor.begin` does."""

    def steps(
        self,
        count: int,
        instrument: Instrument = "none",
        *,
        facts: bool = False,
        within_seconds: float | None = None,
    ) -> list[Report]:
        """LiveRun steps as `Conductor.steps` does."""


Conduct = Callable[[Session], AbstractContextManager[LiveRun]]
"""Gives the run to measure; leaving it decides whether the script goes on to live."""

_BLOCK = 5
_MIN_TIMED, _MIN_LONG_TIMED = 8, 6
_LONG_SECONDS = 0.25
"""Steps that take longer are asked for one by one: level ones then end the warm-up at once, and
fewer of them are timed and looked at closer."""
_INSTRUMENTS: tuple[Instrument, ...] = ("sampler", "operators", "profiler")
"""In the order in which they look."""
_INSTRUMENTS_WHEN_SLOW: tuple[Instrument, ...] = ("operators", "profiler", "sampler")
"""The same where there may not be time for all: what bounds the step first."""
_SLOW_SECONDS = 1.0
"""Steps that take longer run one by one, and are not left out while there are few."""
_WINDOW = 3
_SAMPLER_SECONDS = 1.5
_EVALUATION_SHARE, _FIRST_STEP_SHARE = 0.6, 0.8
"""Shares of the budget for which an evaluation before the first step is waited for, and the end
of a first step that calls its model again and again; then these calls are measured."""
_STEPS_OF_A_LOOK = 2.5
"""Where what is left has no room for so many steps, the next one is looked at, and none is timed:
what a second one takes is worth less than what the operators are."""
_ONCE_SHARE = 0.5
"""A step that takes less than this of the first shows that the first did what happens once."""
_LATE_SHARE = 0.4
"""Share of the budget by which a step that is looked at may end after it."""
_LEAST_SAMPLED, _LEAST_LONG_SAMPLED = 6, 3
"""Steps that tell growth of memory from its ups and downs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """How many steps of which kind to run."""

    steps: int = 40
    """Timed steps, at most."""
    warmup: int | None = None
    """Steps before the timed ones; None: until the step time is steady."""
    budget_seconds: float = 120.0
    """Wall time for the whole measurement; timed steps shrink to fit, to no fewer than 8 (6
    where one takes long)."""
    start_seconds: float = 0.0
    """What the script's start and its first step may take on top of the budget."""
    window: int = _WINDOW
    """Steps under each instrument; 0 leaves the instruments out."""
    timed_seconds: float = math.inf
    """Timed steps end after so long, once there are as many."""
    max_warmup: int = 60
    max_sampled: int = 200
    """Steps under the sampler, at most; it takes as many as give enough samples."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"--steps must be at least 1, not {self.steps}")
        if self.warmup is not None and self.warmup < 0:
            raise InputError(f"--warmup cannot be negative, is {self.warmup}")
        if self.budget_seconds <= 0:
            raise InputError(f"--budget must be above 0 seconds, is {self.budget_seconds:g}")


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
    session = session or Session()
    on_progress = on_progress or _silent
    wants_looks = plan.window > 0
    for _ in range(3):
        start = conduct or _starter(command, plan, entry, on_progress)
        try:
            windows = _measure_once(start(session), plan, on_progress)
        except ScriptFailed as failed:
            raise judged(command, failed, on_progress) from None
        total = windows.seen_steps
        if windows.forwards_without_steps:
            session = replace_session(session)
            continue
        if not windows.ended or windows.complete:
            break
        shorter = _plan_for(plan, total)
        if shorter == plan:
            break
        on_progress(f"the script ends after {total} steps: measuring again with a plan that fits")
        plan = shorter
    windows.settle()
    if not windows.timed or not windows.timed[0].steps:
        crash = crash_of(0, windows.output)  # of a process of its own, perhaps: it did not fail
        raise ScriptError(
            told_of_few_steps(" ".join(command), total, crash), details=crash.traceback
        )
    if wants_looks and plan.window == 0:
        on_progress("running it once more, to look closer")
        windows.looks = _measure_once(start(session), _LOOKS_ONLY, on_progress).looks
    if callable(ceilings):
        ceilings = ceilings("cuda" if windows.device.startswith("cuda") else "cpu")
    return assemble(command, windows, ceilings)


def _silent(text: str) -> None:
    """Nobody wants to know."""


def replace_session(session: Session) -> Session:
    """The same session, counting outermost calls as steps."""
    return msgspec.structs.replace(session, assume_inference=True)


def _plan_for(plan: MeasurementPlan, total: int) -> MeasurementPlan:
    """A plan for a script of `total` steps; the first one always leads in."""
    if total < 4:
        return replace(plan, warmup=0, steps=max(total - 1, 1), window=0)
    window = _WINDOW if total >= 24 else 2 if total >= 12 else 0
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
        measurement = _Measurement(
            run=run, plan=plan, windows=windows, on_progress=on_progress, started=started
        )
        try:
            measurement.take_windows()
        except OutOfPatience:
            if not (windows.seconds() or windows.fall_back_on(run.first_step)):
                raise
        finally:
            windows.output = run.output
        windows.complete = bool(windows.timed) and (not plan.window or "profiler" in windows.tried)
        windows.ranks = len(run.hellos) or 1
        windows.device = run.hellos[0].device if run.hellos else "cpu"
    windows.outcome = run.outcome
    return windows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measurement:
    """One run under one plan."""

    run: LiveRun
    plan: MeasurementPlan
    windows: RunWindows
    on_progress: Progress
    started: float

    def take_windows(self) -> None:
        """Warm up, time, and look closer, for as long as the script goes on."""
        if self._is_slow_from_the_first():
            return
        self._warm_up()
        looks_only = self._has_time_for_a_look_only(self.windows.warmup_seconds)
        if not (self.windows.ended or looks_only):
            self._time()
        for name in _INSTRUMENTS_WHEN_SLOW if looks_only else _INSTRUMENTS:
            if self.plan.window and not self.windows.ended:
                self._look(name)

    def _has_time_for_a_look_only(self, seconds: list[float]) -> bool:
        if not seconds or self.plan.warmup is not None or not self.plan.window:
            return False
        return seconds[-1] > max(_SLOW_SECONDS, self._left_seconds() / _STEPS_OF_A_LOOK)

    def _is_slow_from_the_first(self) -> bool:
        """Did the first step take so long that it must speak, for there is time for one look?

        False too where the second is much quicker: the first compiled something, or allocated.
        """
        first, windows = self.run.begin(), self.windows
        facts = first[0].facts if first else None
        if facts is None or first[0].ended or facts.settings.graph_compiles:
            return False
        seconds = [step.seconds for step in first[0].steps]
        if not self._has_time_for_a_look_only(seconds):
            return False
        if seconds[-1] > self._left_seconds() + _LATE_SHARE * self.plan.budget_seconds:
            return windows.fall_back_on(first)
        self.on_progress(f"the first step took {seconds[-1]:.0f} s: looking closer at the second")
        reports = self.run.steps(1, "operators", facts=True)
        windows.saw(reports)
        if not reports[0].steps or reports[0].steps[0].seconds < _ONCE_SHARE * seconds[-1]:
            return windows.ended
        windows.tried.append("operators")
        if all(report.instrument == "operators" for report in reports):
            windows.looks["operators"] = reports
        windows.let_speak(first)
        return True

    def _spent_seconds(self) -> float:
        return monotonic() - self.started - self.windows.start_seconds

    def _left_seconds(self) -> float:
        return self.plan.budget_seconds - self._spent_seconds()

    def _warm_up(self) -> None:
        run, plan, windows = self.run, self.plan, self.windows
        wanted = plan.warmup if plan.warmup is not None else plan.max_warmup
        latest: list[StepTimes] = []
        while len(windows.warmup_seconds) < wanted:
            slow = not windows.warmup_seconds or windows.warmup_seconds[-1] > _SLOW_SECONDS
            long = slow or windows.warmup_seconds[-1] > _LONG_SECONDS
            block = 1 if long else min(_BLOCK, wanted - len(windows.warmup_seconds))
            reports = run.steps(block, facts=slow)
            if not windows.warmup_seconds:
                windows.start_seconds = min(plan.start_seconds, self._spent_seconds())
            windows.saw(reports)
            windows.warmup_seconds += [step.seconds for step in reports[0].steps]
            if slow:
                windows.slow.append(reports)
            self.on_progress(f"warming up: step {len(windows.warmup_seconds)}")
            latest = reports[0].steps or latest
            if windows.ended:
                return
            level = is_steady(windows.warmup_seconds) or (long and is_level(windows.warmup_seconds))
            if plan.warmup is None and level:
                windows.steady = True
                break
            if self._spent_seconds() + windows.warmup_seconds[-1] > 0.4 * plan.budget_seconds:
                break
        windows.steady |= plan.warmup is not None
        if latest:
            self.on_progress(first_look(latest))

    def _time(self) -> None:
        plan, windows = self.plan, self.windows
        recent = windows.warmup_seconds[-_BLOCK:]
        left = self._left_seconds()
        steps = plan.steps
        if recent and plan.steps > _MIN_TIMED:
            per_step = statistics.median(recent)
            affordable = int(min(0.5 * left, plan.timed_seconds) / max(per_step, 1e-6))
            least = _MIN_TIMED if per_step < _LONG_SECONDS else _MIN_LONG_TIMED
            steps = max(least, min(plan.steps, affordable))
        # Where steps are slow, some of what is left is for looking closer at one.
        share = 0.3 if recent and 8 * recent[-1] > left else 0.6
        self.on_progress(
            f"timing {steps} steps" if share > 0.3 else "timing as many steps as there is time for"
        )
        reports = self.run.steps(steps, facts=True, within_seconds=max(share * left, 1.0))
        windows.saw(reports)
        windows.timed = reports

    def _look(self, name: Instrument) -> None:
        plan, windows = self.plan, self.windows
        windows.tried.append(name)
        mean = statistics.mean(windows.seconds() or [0.0])
        is_long = mean > _LONG_SECONDS
        steps = min(plan.window, 1 if mean > 2 * _LONG_SECONDS else 2 if is_long else plan.window)
        left = self._left_seconds()
        if mean > max(_SLOW_SECONDS, left):
            windows.warnings.append(
                f"no time was left to look closer ({name}): a step takes {mean:.0f} s; --budget "
                f"{60 * math.ceil((plan.budget_seconds + 8 * mean) / 60)} gives it some"
            )
            return
        if name == "sampler" and mean:
            least = _LEAST_LONG_SAMPLED if is_long else _LEAST_SAMPLED
            wanted = max(least, math.ceil(_SAMPLER_SECONDS / max(mean, 1e-6)))
            steps = min(wanted, plan.max_sampled, max(least, plan.steps))
        if name == "profiler":
            steps = steps_to_profile(steps, windows.operators_per_step())
            if not steps:
                windows.warnings.append(
                    f"the profiler was left out: it keeps a record of every operator, and a step "
                    f"has {windows.operators_per_step():,.0f}"
                )
                return
        # Half of what is left for each: the last two are slower than the steps that were timed.
        within = max(left / 2, 1.0)
        if mean > _SLOW_SECONDS:
            steps = max(1, min(steps, int(within / mean)))
        self.on_progress(f"looking closer: {name}, {steps} steps")
        reports = self.run.steps(steps, name, facts=True, within_seconds=within)
        windows.saw(reports)
        seen = windows.ended and len(reports[0].steps) < steps
        if not seen and reports[0].steps and all(r.instrument == name for r in reports):
            windows.looks[name] = reports
