"""Two runs of the same script, measured in turn: A B B A …, so that drift hits both alike.

Both processes live side by side; while one runs, the other is frozen at a step boundary. Both
are at the same step of the script in every round, so steps of uneven work compare like with
like. The first step after a thaw refills caches and is left out. Where two copies do not fit
on the device, each block is a run of its own.
"""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from ridgeline.errors import RidgelineError
from ridgeline.measure.conductor import Conductor
from ridgeline.measure.guard.kept import put_back
from ridgeline.measure.statistics import RatioInterval, is_steady, ratio_interval
from ridgeline.measure.wire import Applied, Report, Session
from ridgeline.tune.install import ENTRY

LOOKS = (8, 12, 18)
"""Rounds after which the interval is looked at; it may end the duel early."""
CONFIDENCE = 0.983
"""Of each look: three looks at this level are 95 % together (Bonferroni)."""
NOTHING_KNOWN = RatioInterval(ratio=1.0, low=0.0, high=math.inf, rounds=0)
_BLOCK_SECONDS = 0.6
_MIN_BLOCK, _MAX_BLOCK = 2, 64
_MAX_WARMUP = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One side of a duel."""

    command: list[str]
    stack: tuple[Applied, ...] = ()
    cwd: Path | None = None
    """Where it runs; None: where we are."""


class ContenderFailed(Exception):
    """One side's script failed; says which and why."""

    def __init__(self, side: str, error: RidgelineError) -> None:
        super().__init__(str(error))
        self.side = side
        self.error = error


@dataclass(slots=True)
class Duel:
    """What a duel found. Ratios are time of A over time of B: above 1, B is faster."""

    interval: RatioInterval
    a_steps: list[float] = field(default_factory=list)
    b_steps: list[float] = field(default_factory=list)
    a_losses: list[float] = field(default_factory=list)
    b_losses: list[float] = field(default_factory=list)
    b_peak_memory_bytes: int = 0
    b_non_finite: int = 0
    b_applied: dict[str, str] = field(default_factory=dict)
    had_no_effect: bool = False


@dataclass(slots=True)
class _Side:
    """One contender while it runs."""

    name: str
    conductor: Conductor
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    applied: dict[str, str] = field(default_factory=dict)

    def run(self, steps: int) -> list[float]:
        """Run a block; seconds of its steps, slowest rank of each."""
        try:
            reports = self.conductor.steps(steps)
        except RidgelineError as error:
            raise ContenderFailed(self.name, error) from error
        self.losses += reports[0].losses
        self.applied = reports[0].applied
        return slowest(reports)

    def look(self, steps: int) -> Report:
        """Run a block under the profiler: memory and gradients."""
        try:
            report = self.conductor.steps(steps, "profiler")[0]
        except RidgelineError as error:
            raise ContenderFailed(self.name, error) from error
        self.losses += report.losses
        return report


def slowest(reports: list[Report]) -> list[float]:
    """Seconds per step; with several ranks a step lasts as long as its slowest rank."""
    in_step = zip(*(report.steps for report in reports), strict=False)
    return [max(step.seconds for step in steps) for steps in in_step]


def silent(text: str) -> None:
    """Nobody wants to know."""


class DuelPlan:
    """Limits of one duel and how to decide early."""

    def __init__(
        self,
        *,
        threshold: float,
        seconds: float,
        resident: bool = True,
        say: Callable[[str], None] = silent,
    ) -> None:
        self.threshold = threshold
        self.seconds = seconds
        self.deadline = math.inf
        self.patience_seconds = max(2 * seconds, 300.0)
        self.resident = resident
        self.say = say

    def begin(self) -> None:
        """Both sides are warm; compilation and loading do not count against the rounds."""
        if math.isinf(self.deadline):
            self.deadline = monotonic() + self.seconds

    def is_over(self) -> bool:
        """Has the time for this duel run out?"""
        return monotonic() > self.deadline

    def is_decided(self, interval: RatioInterval) -> bool:
        """Clearly a gain, or clearly not one."""
        clear_gain = interval.low > 1 + self.threshold
        clear_loss = interval.high < 1 + self.threshold
        return clear_gain or clear_loss


def duel(a: Contender, b: Contender, plan: DuelPlan) -> Duel:
    """Measure B against A.

    Raises:
        ContenderFailed: the script of one side failed or was killed.
    """
    saved = Path(tempfile.mkdtemp(prefix="ridgeline-saved-"))
    result = Duel(interval=NOTHING_KNOWN)
    rounds: list[tuple[float, float]] = []
    try:
        while len(rounds) < LOOKS[-1] and not plan.is_over():
            before = len(rounds)
            if plan.resident:
                _side_by_side(a, b, plan, result, rounds, saved)
            else:
                _one_at_a_time(a, b, plan, result, rounds, saved)
            if result.had_no_effect or len(rounds) == before:
                break
            if len(rounds) >= LOOKS[0] and plan.is_decided(result.interval):
                break
    finally:
        put_back(saved / "files")
        shutil.rmtree(saved, ignore_errors=True)
    result.interval = _interval(rounds)
    return result


def _conductor(contender: Contender, plan: DuelPlan, saved: Path) -> Conductor:
    session = Session(stack=list(contender.stack), fix_seed=True, saved_folder=str(saved / "files"))
    return Conductor(
        contender.command,
        session,
        entry=ENTRY,
        cwd=contender.cwd,
        patience_seconds=plan.patience_seconds,
    )


def _side_by_side(
    a: Contender,
    b: Contender,
    plan: DuelPlan,
    result: Duel,
    rounds: list[tuple[float, float]],
    saved: Path,
) -> None:
    with ExitStack() as running:
        sides = [
            _Side(name, running.enter_context(_conductor(contender, plan, saved)))
            for name, contender in (("a", a), ("b", b))
        ]
        block = _warm_up(sides, plan)
        _keep(result, sides)
        result.had_no_effect = not _took_effect(a, b, result.b_applied)
        if block == 0 or result.had_no_effect:
            return
        plan.begin()
        while len(rounds) < LOOKS[-1] and not plan.is_over():
            times = _round(sides, block, flip=len(rounds) % 2 == 1)
            _keep(result, sides)
            if times is None:
                return
            rounds.append(times)
            if len(rounds) in LOOKS:
                result.interval = _interval(rounds)
                plan.say(f"{len(rounds)} rounds: {result.interval.ratio:.3f}×")
                if plan.is_decided(result.interval):
                    break
        _look_at(sides[1], result)
        _keep(result, sides)


def _warm_up(sides: list[_Side], plan: DuelPlan) -> int:
    """Run both, in turn and in step, until both are steady; returns the steps per block.

    0: the script ended before it was steady.
    """
    seconds: list[list[float]] = [[] for _ in sides]
    size = 4
    while True:
        for side, seen in zip(sides, seconds, strict=True):
            seen.extend(side.run(size))
            if side.conductor.ended:
                return 0
        settled = all(is_steady(seen) for seen in seconds)
        if settled or len(seconds[0]) >= _MAX_WARMUP or plan.is_over():
            break
    slow = max(statistics.median(seen[-size:]) for seen in seconds)
    return max(_MIN_BLOCK, min(_MAX_BLOCK, math.ceil(_BLOCK_SECONDS / slow))) + 1


def _round(sides: list[_Side], block: int, *, flip: bool) -> tuple[float, float] | None:
    """One block of each; mean seconds per step of A and of B, None when the script ended."""
    means: dict[str, float] = {}
    for side in reversed(sides) if flip else sides:
        steps = side.run(block)
        if len(steps) < block:
            return None
        side.seconds += steps[1:]
        means[side.name] = sum(steps[1:]) / (block - 1)
    if any(side.conductor.ended for side in sides):
        return None
    return means["a"], means["b"]


def _one_at_a_time(
    a: Contender,
    b: Contender,
    plan: DuelPlan,
    result: Duel,
    rounds: list[tuple[float, float]],
    saved: Path,
) -> None:
    """A round of two whole starts: for devices that hold one copy only."""
    means: dict[str, float] = {}
    sides = []
    for name, contender in (("a", a), ("b", b)):
        with _conductor(contender, plan, saved) as conductor:
            side = _Side(name, conductor)
            sides.append(side)
            block = _warm_up([side], plan)
            plan.begin()
            steps = side.run(block or _MIN_BLOCK)
            if not steps:
                return
            side.seconds += steps
            means[name] = sum(steps) / len(steps)
            if name == "b" and not conductor.ended:
                _look_at(side, result)
    _keep(result, sides)
    result.had_no_effect = not _took_effect(a, b, result.b_applied)
    rounds.append((means["a"], means["b"]))
    result.interval = _interval(rounds)


def _look_at(side: _Side, result: Duel) -> None:
    if side.conductor.ended:
        return
    report = side.look(3)
    result.b_peak_memory_bytes = max(result.b_peak_memory_bytes, report.memory_peak_bytes)
    result.b_non_finite += report.non_finite


def _keep(result: Duel, sides: list[_Side]) -> None:
    """Keep the longest trajectories seen, and all timed steps."""
    a, b = sides
    if len(a.losses) > len(result.a_losses):
        result.a_losses = list(a.losses)
    if len(b.losses) > len(result.b_losses):
        result.b_losses = list(b.losses)
    result.a_steps += a.seconds
    result.b_steps += b.seconds
    a.seconds, b.seconds = [], []
    result.b_applied = dict(b.applied)


def _took_effect(a: Contender, b: Contender, applied: dict[str, str]) -> bool:
    added = {t.technique for t in b.stack} - {t.technique for t in a.stack}
    return not added or any(name in applied for name in added)


def _interval(rounds: list[tuple[float, float]]) -> RatioInterval:
    if not rounds:
        return NOTHING_KNOWN
    return ratio_interval([r[0] for r in rounds], [r[1] for r in rounds], CONFIDENCE)
