"""What it will take to answer a question: starts, warm-up, rounds and the check of losses.

A budget is divided by this. What gains most per second is asked first, and nothing is begun that
could not be finished: a row that is cut off has cost its time and says nothing.

The script's own start and step were timed when it was profiled. How long a compiler or a runtime
prepares is not known before it was seen once; until then it is `PREPARING_SECONDS`, longer where
the script waits for cores, and what it took once it is expected to take again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.measure.wire import Applied
from ridgeline.records import LedgerRow, StepProfile
from ridgeline.techniques import Stage, technique

PREPARING_SECONDS = {Stage.COMPILE: 20.0, Stage.GRAPH: 20.0, Stage.RUNTIME: 25.0}
"""Seconds from the first step to the settled pace, beyond the steps themselves. Seen: 12.7 s of
torch and 24.8 s of g++ on one core for forward and backward of a GPT of four layers."""
_WARM_UP_STEPS = 10
"""Until the pace is level, and two under the profiler, which count as several."""
_ROUNDS, _LEAST_BLOCK_SECONDS = 4, 0.8
"""What a plain gain takes, and each side's share of a round with its lead-in."""
_SIDE_RUN_STEPS = 20
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
    ) -> float:
        """Until these are measured on top of a stack that is alive.

        Args:
            members: What is added; nothing: a run that has to be started for its own sake.
            rows: What was measured so far: a technique that prepared for long will do so again.
            speedup: How much faster the steps are by now.
            checked: Is the disturbed run known by which their losses are judged?

        >>> quick = Costs(step_seconds=0.1, load_seconds=5.0, slowness=1.0)
        >>> quick.seconds([Applied(technique="compile")]) > 2 * quick.seconds([])
        True
        """
        seen, step = list(rows), self.step_seconds / speedup
        total = self.load_seconds + _WARM_UP_STEPS * step
        total += 2 * _ROUNDS * max(step, _LEAST_BLOCK_SECONDS)
        total += sum(self._preparing(member, seen) for member in members)
        if not checked:
            total += self.load_seconds + _SIDE_RUN_STEPS * step
        return total

    def _preparing(self, member: Applied, rows: list[LedgerRow]) -> float:
        seconds = PREPARING_SECONDS.get(technique(member.technique).CARD.stage, 0.0)
        took = [
            row.startup_seconds
            for row in rows
            if row.technique == member.technique and row.startup_seconds is not None
        ]
        return max(0.0, *took) if took else self.slowness * seconds
