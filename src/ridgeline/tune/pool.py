"""The variants that are alive: each started once, frozen from one question to the next.

Half of the time of a search is starts: importing torch, reading data, compiling. So a run of the
script is kept at its step boundary when its question is answered, and the next question that
needs the same stack goes on with it. Where no more copies fit, the one that was not asked for
longest makes room. What the script's saves overwrote is put back when the pool closes.
"""

from __future__ import annotations

import itertools
import math
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from msgspec.structs import replace

from ridgeline.errors import RidgelineError
from ridgeline.measure.calls.loop import CallSample
from ridgeline.measure.guard.guardian import Outcome
from ridgeline.measure.guard.kept import put_back
from ridgeline.measure.live.conductor import Conductor
from ridgeline.measure.live.crash import ScriptFailed
from ridgeline.measure.statistics.cycles import StepCycle
from ridgeline.measure.wire import (
    Applied,
    CallsAsSteps,
    Hello,
    Instrument,
    Report,
    Session,
    Updates,
)
from ridgeline.records import Site
from ridgeline.techniques import environment_of
from ridgeline.tune.stack import ENTRY
from ridgeline.tune.updates import WEIGHED_STEPS

MOST_ALIVE = 6
"""Copies that are kept however large the machine's memory is."""
LEAST_PATIENCE_SECONDS = 2.0
USUAL_LOAD_SECONDS = 10.0
"""How long a script takes to its first boundary where none was seen to start."""
_PACE_STEPS = 10
_SIDES = 2
"""Runs that one question is about."""
SLOW_SECONDS = 1.0
"""Steps that take longer are dear: no more of them than tell what is asked."""
_EVEN_STEPS, _EVEN_STEPS_WHEN_SLOW = 20, 8
"""So many steps of the same size must have been seen before all are believed to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One side of an A/B run."""

    command: list[str]
    stack: tuple[Applied, ...] = ()
    cwd: Path | None = None
    """Where it runs; None: where we are."""

    @property
    def key(self) -> str:
        """What makes two runs the same run."""
        members = sorted(repr(member) for member in self.stack)
        return repr((self.command, members, self.cwd))


class Live:
    """One run of a variant, and all that was seen of it since its first step."""

    def __init__(
        self, variant: Variant, conductor: Conductor, patience: Callable[[], float]
    ) -> None:
        self.variant = variant
        self.conductor = conductor
        self.index = 0
        """Steps behind it, the very first not counted: two runs at the same index do the same."""
        self.losses: list[float] = []
        self.updates = Updates()
        self.seconds: list[float] = []
        self.cpu_seconds = 0.0
        """CPU time of the process on rank 0 over all steps so far."""
        self.applied: dict[str, str] = {}
        self.places: dict[str, list[Site]] = {}
        self.refused: dict[str, str] = {}
        self.preparing: dict[str, str] = {}
        """Technique that has not taken effect yet, and will → how far it is, in words."""
        self.is_warm = False
        self.settled_after = 0
        """Steps among `seconds` before it was warm."""
        self.failed = False
        """It died, or was left in the middle of a step: there is nothing to wait for."""
        self.was_looked_at = False
        self.peak_memory_bytes = 0
        self.non_finite = 0
        self.start_seconds = math.inf
        """From the start of the process to where it was warm: loading, compiling, settling; and
        waiting for others meanwhile."""
        self.load_seconds: float | None = None
        """From the start of the process to its first boundary; None before it."""
        self._starting_seconds = 0.0
        self._starting_steps = 0
        self._patience = patience
        self._begun = monotonic()
        self.sizes: set[tuple[int, int]] = set()
        """Samples and tokens of the steps so far."""
        self.evaluated = False
        """Did it evaluate between steps?"""
        self.anchor: int | None = None
        """Which optimizer ends its steps, in the order in which they were made."""
        self.breaks = [0]
        """Steps in which a loader began or it evaluated: the very first, and those seen since."""

    @property
    def ended(self) -> bool:
        """The script ran to its own end."""
        return self.conductor.ended

    @property
    def can_go_on(self) -> bool:
        """Is it in the middle of its script, and its process still there?"""
        return not self.ended and not self.failed and self.conductor.is_running

    @property
    def hellos(self) -> list[Hello]:
        """Who said hello, one per rank."""
        return self.conductor.hellos

    @property
    def first_step(self) -> list[Report]:
        """The very first step on every rank."""
        return self.conductor.first_step

    @property
    def output(self) -> str:
        """The end of what the script printed."""
        return self.conductor.output

    @property
    def outcome(self) -> Outcome | None:
        """How the user's files were protected; None as long as it goes on."""
        return self.conductor.outcome

    def begin(self) -> list[Report]:
        """Wait for the very first step, as `Conductor.begin` does."""
        left = self._patience()
        self.conductor.wait_for(left if math.isfinite(left) else None)
        try:
            return self.conductor.begin()
        except BaseException:
            self.failed = True
            raise

    def steps(
        self,
        count: int,
        instrument: Instrument = "none",
        *,
        facts: bool = False,
        within_seconds: float | None = None,
    ) -> list[Report]:
        """Run steps as `Conductor.steps` does, and remember what came of them."""
        left = self._patience()
        self.conductor.wait_for(left if math.isfinite(left) else None)
        self.was_looked_at |= instrument == "profiler"
        asked = monotonic()
        try:
            reports = self.conductor.steps(
                count, instrument, facts=facts, within_seconds=within_seconds
            )
        except BaseException:
            self.failed = True
            raise
        if self.load_seconds is None:
            stepped = sum(step.seconds for step in reports[0].steps)
            self.load_seconds = max(0.0, monotonic() - self._begun - stepped)
        self._remember(reports, timed=instrument == "none")
        if instrument == "none" and not self.is_warm:
            self._starting_seconds += monotonic() - asked
            self._starting_steps += len(reports[0].steps)
        return reports

    def calls(
        self, count: int, *, within_seconds: float, period_seconds: float | None = None
    ) -> list[CallSample]:
        """Run steps one by one, at a period or in a closed loop, and tell of each."""
        left = self._patience() + 2 * within_seconds
        self.conductor.wait_for(left if math.isfinite(left) else None)
        try:
            reports = self.conductor.steps(
                count, within_seconds=within_seconds, calls=True, period_seconds=period_seconds
            )
        except BaseException:
            self.failed = True
            raise
        self._remember(reports, timed=False)
        return reports[0].calls

    @property
    def startup_seconds(self) -> float | None:
        """Its own time before the settled pace, beyond what its steps take at that pace."""
        if not self.is_warm or not self.seconds:
            return None
        pace = statistics.median(self.seconds[-_PACE_STEPS:])
        return max(0.0, self._starting_seconds - self._starting_steps * pace)

    def warmed_up(self) -> None:
        """The step time has settled: from now on it may be timed."""
        self.is_warm = True
        self.settled_after = len(self.seconds)
        self.start_seconds = monotonic() - self._begun

    def _remember(self, reports: list[Report], *, timed: bool) -> None:
        report = reports[0]
        for number, step in enumerate(report.steps, start=self.index + 1):
            evaluated = bool(step.phases.get("evaluation"))
            self.evaluated |= evaluated
            if evaluated or step.begins_epoch:
                self.breaks.append(number)
        self.index += len(report.steps)
        self.cpu_seconds += report.cpu_seconds
        self.losses += report.losses
        self.updates = self.updates.and_then(report.updates)
        self.applied, self.anchor, self.places = report.applied, report.anchor, report.places
        self.refused, self.preparing = report.refused, report.preparing
        if timed:
            self.seconds += slowest(reports)
        self.sizes |= {(step.samples, step.tokens) for step in report.steps}
        self.peak_memory_bytes = max(self.peak_memory_bytes, report.memory_peak_bytes)
        self.non_finite += report.non_finite


def period_of(sides: Sequence[Live]) -> int | None:
    """Steps after which the work of a script repeats.

    1 where each step is the same work: batches of one size on all sides. Where loaders begin anew,
    or it evaluates, after as many steps each time, these: workers that start fill their queues,
    which takes the cores from an epoch's first steps. None where no step is known to be like
    another; what was not seen is not believed.
    """
    sizes = set().union(*(side.sizes for side in sides))
    if len(sizes) != 1 or (0, 0) in sizes or not any(map(_has_stepped_enough, sides)):
        return None
    longest = max((side.breaks for side in sides), key=len)
    periods = {later - earlier for earlier, later in itertools.pairwise(longest)}
    if len(periods) == 1:
        return periods.pop()
    return None if any(side.evaluated for side in sides) else 1


def _has_stepped_enough(side: Live) -> bool:
    """Has it made so many steps that others would have shown?"""
    is_slow = min(side.seconds, default=0.0) > SLOW_SECONDS
    return side.index >= (_EVEN_STEPS_WHEN_SLOW if is_slow else _EVEN_STEPS)


def slowest(reports: list[Report]) -> list[float]:
    """Seconds per step; with several ranks a step lasts as long as its slowest rank."""
    in_step = zip(*(report.steps for report in reports), strict=False)
    return [max(step.seconds for step in steps) for steps in in_step]


class Pool:
    """The runs of all variants. Close it when the search is over."""

    def __init__(self, *, room: int = MOST_ALIVE) -> None:
        self.room = room
        """Copies that fit side by side."""
        self.kept: frozenset[str] = frozenset()
        """Keys of variants that make room last: they will be asked for again."""
        self.deadline = math.inf
        """When every script must have answered, on `monotonic`'s clock; one that has not by then
        is given up."""
        self.least_patience_seconds = LEAST_PATIENCE_SECONDS
        """How long each answer may take whatever the deadline."""
        self.cycle: StepCycle | None = None
        """In which long steps return, as a profile saw them."""
        self.length: int | None = None
        """Steps after which the script ends by itself, once a run has; the fewest seen."""
        self.calls = CallsAsSteps()
        """What counts as a step, in every run alike."""
        self.has_memory_looked_at = True
        """Each copy runs some steps under the profiler before it is timed."""
        self._saved = Path(tempfile.mkdtemp(prefix="ridgeline-saved-"))
        self._alive: dict[str, Live] = {}

    def take(self, variant: Variant) -> Live:
        """The run of a variant: the one that is alive, or a new one that has not stepped yet."""
        live = self._alive.pop(variant.key, None)
        if live is None or not live.can_go_on:
            if live is not None:
                self._end(live)
            live = self._start(variant)
        self._alive[variant.key] = live  # the one asked for last stands last
        return live

    def alive(self, variant: Variant) -> Live | None:
        """The variant's run, when it is in the middle of its script."""
        live = self._alive.get(variant.key)
        return live if live is not None and live.can_go_on else None

    def lead_of(self, variant: Variant) -> int:
        """Steps that a new run makes until it stands where this one does in its work.

        Where the work repeats, half of what it takes to repeat.
        """
        live = self.alive(variant)
        if live is None:
            return 0
        period = period_of([live])
        return live.index if period is None else period // 2

    @property
    def load_seconds(self) -> float:
        """What a start takes; the least of those alive, for some compile in their first step."""
        seen = [live.load_seconds for live in self._alive.values() if live.load_seconds is not None]
        return min(seen, default=USUAL_LOAD_SECONDS)

    def ended(self, live: Live) -> None:
        """A run came to its own end: so long is the script."""
        self.length = min(self.length or live.index, live.index)

    def drop(self, variant: Variant) -> None:
        """End the variant's run, if it has one."""
        live = self._alive.pop(variant.key, None)
        if live is not None:
            self._end(live)

    @contextmanager
    def borrow(self, variant: Variant) -> Iterator[Live]:
        """A run for a while, for whoever measures it otherwise; it stays alive unless it fails.

        What ends a step of the script as it stands is known by then, and is the same in every run.
        """
        try:
            live = self.take(variant)
            yield live
        except BaseException:
            self.drop(variant)
            raise
        if not variant.stack:
            self.calls = replace(self.calls, optimizer=live.anchor)

    def close(self) -> None:
        """Kill every run where it stands and put back what their saves overwrote.

        Nobody waits for what a script does on its way out (seconds, once it has compiled).
        """
        try:
            for live in self._alive.values():
                live.failed = True
                self._end(live)
        finally:
            self._alive.clear()
            put_back(self._saved / "files")
            shutil.rmtree(self._saved, ignore_errors=True)

    def _start(self, variant: Variant) -> Live:
        while len(self._alive) >= self.room:
            self.drop(self._makes_room().variant)
        session = Session(
            stack=list(variant.stack),
            environment=environment_of(variant.stack),
            fix_seed=True,
            weighed_steps=WEIGHED_STEPS,
            saved_folder=str(self._saved / "files"),
            calls=self.calls,
        )
        conductor = Conductor(variant.command, session, entry=ENTRY, cwd=variant.cwd)
        conductor.__enter__()
        return Live(variant, conductor, self._patience)

    def _makes_room(self) -> Live:
        """Who was not asked for longest; of those to be kept, only if both sides had no room."""
        kept = self.kept if self.room >= len(self.kept) + _SIDES else frozenset()
        free = (live for key, live in self._alive.items() if key not in kept)
        return next(free, next(iter(self._alive.values())))

    def _patience(self) -> float:
        return max(self.deadline - monotonic(), self.least_patience_seconds)

    @staticmethod
    def _end(live: Live) -> None:
        """Let it leave at its boundary; one that failed is killed where it stands."""
        live.conductor.__exit__(VariantFailed if live.failed else None, None, None)


class VariantFailed(Exception):
    """One side's script failed; says which and why."""

    def __init__(self, side: str, error: RidgelineError) -> None:
        super().__init__(str(error))
        self.side = side
        self.error = error

    @property
    def reason(self) -> str:
        """How it failed, for a row that says already what was run."""
        if not isinstance(self.error, ScriptFailed):
            return str(self.error)
        place = self.error.crash.place
        return f"it fails{' at ' + place if place else ''}: {self.error.crash.what}"
