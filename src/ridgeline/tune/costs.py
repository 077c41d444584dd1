"""What it will take to answer a question: starts, warm-up, rounds and the check of losses.

A budget is divided by this. What gains most per second is asked first, and nothing is begun that
is likely to be cut off: such a row has cost its time and says nothing. Once nothing else is left
to ask, time that is not used says nothing either: then what might just be finished is begun.

The script's own start and step were timed when it was profiled. How long a compiler or a runtime
prepares is not known before it was seen once; until then it is `PREPARING_SECONDS`, longer where
the script waits for cores, and what it took once it is expected to take again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.measure.wire import Applied
from ridgeline.records import LedgerRow, StepProfile
from ridgeline.techniques import Stage, technique
from ridgeline.tune.pool import SLOW_SECONDS

PREPARING_SECONDS = {Stage.COMPILE: 20.0, Stage.GRAPH: 20.0, Stage.RUNTIME: 25.0}
"""Seconds from the first step to the settled pace, beyond the steps themselves. Seen: 12.7 s of
torch and 24.8 s of g++ on one core for forward and backward of a GPT of four layers."""
LEAST_BLOCK_SECONDS = 0.8
"""Each side's share of a round with its lead-in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pace:
    """How many steps a question takes."""

    warm_up_steps: int
    """Until the pace is level, and two under the profiler, which count as several."""
    slow_warm_up_steps: int
    """The same where a step is slow."""
    rounds: int
    """What a plain gain takes."""
    side_run_steps: int
    """Steps of the run by which losses are judged."""
    preparing: float
    """Share of `PREPARING_SECONDS` that passes."""


_LIKELY = _Pace(warm_up_steps=10, slow_warm_up_steps=6, rounds=4, side_run_steps=20, preparing=1.0)
_AT_BEST = _Pace(warm_up_steps=6, slow_warm_up_steps=4, rounds=3, side_run_steps=16, preparing=0.5)
"""What a small model takes, or one whose graphs are cached."""
_MOST_WAITING = 0.8
"""Share of the step in which it may wait for cores before we stop dividing by what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The pace of one script, from which follows what a question about it takes."""

    step_seconds: float
    load_seconds: float
    """From the start of its process to its first boundary."""
    slowness: float
    """How many times longer everything takes because others use the cores."""

    @classmethod
    def of(cls, profile: StepProfile, load_seconds: float) -> Costs:
        """The costs of a script by its profile."""
        return cls(
            step_seconds=profile.step_seconds.mean,
            load_seconds=load_seconds,
            slowness=1 / (1 - min(profile.crowded_share, _MOST_WAITING)),
        )

    def seconds(
        self,
        members: Iterable[Applied],
        rows: Iterable[LedgerRow] = (),
        *,
        speedup: float = 1.0,
        checked: bool = True,
        at_best: bool = False,
        lead_steps: int = 0,
    ) -> float:
        """Until these are measured on top of a stack that is alive.

        Args:
            members: What is added; nothing: a run that has to be started for its own sake.
            rows: What was measured so far: a technique that prepared for long will do so again.
            speedup: How much faster the steps are by now.
            checked: Is the disturbed run known by which their losses are judged?
            at_best: What it takes if nobody else uses the cores any more and little is prepared?
            lead_steps: So far the stack that is alive has come: both do the same steps of the
                script, so the new run catches up, or that one starts again.

        >>> quick = Costs(step_seconds=0.1, load_seconds=5.0, slowness=1.0)
        >>> quick.seconds([Applied(technique="compile")]) > 2 * quick.seconds([])
        True
        """
        seen, step, pace = list(rows), self.step_seconds / speedup, _LIKELY
        load = self.load_seconds
        if at_best:
            step, load, pace = step / self.slowness, load / self.slowness, _AT_BEST
        warm_up = self._warm_up_steps(pace, step)
        start = load + warm_up * step
        total = start + min(start, max(lead_steps - warm_up, 0) * step)
        total += 2 * pace.rounds * max(step, LEAST_BLOCK_SECONDS)
        total += sum(self._preparing(member, seen, at_best=at_best) for member in members)
        if not checked:
            total += load + self._side_run_steps(pace, step) * step
        return total

    @staticmethod
    def _warm_up_steps(pace: _Pace, step: float) -> int:
        return pace.slow_warm_up_steps if step > SLOW_SECONDS else pace.warm_up_steps

    def _side_run_steps(self, pace: _Pace, step: float) -> int:
        """Steps of the run by which losses are judged: no more than both sides will have made."""
        made = self._warm_up_steps(pace, step) + pace.rounds * math.ceil(LEAST_BLOCK_SECONDS / step)
        return min(pace.side_run_steps, made)

    def _preparing(self, member: Applied, rows: list[LedgerRow], *, at_best: bool) -> float:
        seconds = PREPARING_SECONDS.get(technique(member.technique).CARD.stage, 0.0)
        took = [
            row.startup_seconds
            for row in rows
            if row.technique == member.technique and row.startup_seconds is not None
        ]
        if took:
            return max(0.0, *took)
        return (_AT_BEST.preparing if at_best else self.slowness) * seconds
