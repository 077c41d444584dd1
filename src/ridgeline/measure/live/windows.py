"""Which windows of steps one measurement takes: warm up, time, look closer.

Steps are timed while nothing but the phase clock runs. How many there are follows from how long
they take and from what is left of the budget.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from ridgeline.errors import InputError
from ridgeline.measure.guard.guardian import Outcome
from ridgeline.measure.live.assemble import RunWindows
from ridgeline.measure.live.operator_times import steps_to_profile
from ridgeline.measure.live.steps import first_look
from ridgeline.measure.statistics.cycles import has_long_steps
from ridgeline.measure.statistics.intervals import is_level, is_steady
from ridgeline.measure.wire import Hello, Instrument, Report, StepTimes

Progress = Callable[[str], None]


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
WINDOW = 3
"""Steps under each instrument, where the script has enough of them."""
_SAMPLER_SECONDS = 1.5
_MOST_IN_CYCLES = 5000
_CALLED_BEFORE = 8
"""Calls of the model before the first step, beyond its own, that are worth a word."""
_STEPS_OF_A_LOOK = 2.5
"""Where what is left has no room for so many steps, the next one is looked at, and none is timed:
what a second one takes is worth less than what the operators are."""
_UNUSUAL = 5.0
"""Times the very first step from which the one after it is no usual step."""
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
    window: int = WINDOW
    """Steps under each instrument; 0 leaves the instruments out."""
    timed_seconds: float = math.inf
    """Timed steps end after so long, once there are as many."""
    cycle_seconds: float = 0.0
    """Where long steps lie among short ones, or the model is asked without gradients between
    them, steps are timed for so long: whole cycles of playing and learning. 0: never."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
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
        if facts is None or first[0].ended or first[0].comes_in_parts:
            return False
        if facts.settings.graph_compiles:
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
            if self._was_no_usual_step():
                continue
            if self._spent_seconds() + windows.warmup_seconds[-1] > 0.4 * plan.budget_seconds:
                break
        windows.steady |= plan.warmup is not None
        if latest:
            self.on_progress(first_look(latest))

    def _was_no_usual_step(self) -> bool:
        """Did the only step after the very first take so much longer that the next may not?

        A script that evaluates after its first step (with gradients, too: a meta-learner adapts)
        is not what it does from then on.
        """
        first, seen = self.run.first_step, self.windows.warmup_seconds
        if len(seen) != 1 or not (first and first[0].steps):
            return False
        short = first[0].steps[0].seconds
        return seen[0] > _UNUSUAL * short and short < self._left_seconds() / _STEPS_OF_A_LOOK

    def _time(self) -> None:
        plan, windows = self.plan, self.windows
        recent = windows.warmup_seconds[-_BLOCK:]
        left = self._left_seconds()
        steps = plan.steps
        if recent and plan.steps > _MIN_TIMED:
            per_step = min(statistics.median(recent), recent[-1])
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
        self._time_whole_cycles()
        self._tell_what_came_before()

    def _time_whole_cycles(self) -> None:
        """Time more steps where some are of another kind: a few may all be of one kind."""
        windows, run = self.windows, self.run
        seconds = windows.seconds()
        within = min(self.plan.cycle_seconds, 0.3 * self._left_seconds())
        if windows.ended or not seconds or sum(seconds) >= within or len(run.hellos) > 1:
            return
        if not self._trains():
            return
        called = self._calls_before_the_first_step() >= _CALLED_BEFORE
        asks = called or _asks_without_gradients(windows.timed)
        if not (asks or has_long_steps(seconds)):
            return
        self.on_progress("timing on: its steps are of more than one kind")
        reports = run.steps(_MOST_IN_CYCLES, facts=True, within_seconds=within)
        windows.saw(reports)
        if len(reports[0].steps) >= len(seconds):
            windows.timed = reports

    def _tell_what_came_before(self) -> None:
        """Say so where the model was called again and again before the first step, and no more."""
        before = self._calls_before_the_first_step()
        if (
            self._trains()
            and before >= _CALLED_BEFORE
            and not _asks_without_gradients(self.windows.timed)
        ):
            self.windows.warnings.append(
                f"by the end of its first step the script had called its model {before:,.0f} times "
                "more often than in a step since: what that takes where it comes again (an agent "
                "plays, a model is evaluated) is not in the timed steps"
            )

    def _trains(self) -> bool:
        facts = self.windows.timed[0].facts
        return facts is not None and facts.kind == "training"

    def _calls_before_the_first_step(self) -> float:
        """Forwards of outermost modules until the first step, but those of the step itself."""
        first, timed = self.run.first_step, self.windows.timed
        if not (first and timed and self.windows.seen_steps):
            return 0.0
        until = first[0].forwards_seen
        evaluations = (timed[0].forwards_seen - until) / self.windows.seen_steps
        facts = timed[0].facts
        own = facts.settings.forwards_per_step if facts is not None else 0.0
        return until - evaluations - own

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


def _asks_without_gradients(reports: list[Report]) -> bool:
    """Was the model called without gradients in the steps of the first rank?"""
    return any(step.phases.get("evaluation") for report in reports[:1] for step in report.steps)
