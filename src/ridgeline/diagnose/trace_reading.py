"""The facts of all ranks, with the questions that trace rules ask of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from ridgeline import quantity
from ridgeline.diagnose.ranks_together import RanksTogether, ranks_together
from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.records.finding import TraceFinding


class TraceReading:
    """All ranks that were given."""

    def __init__(self, facts: Sequence[RankFacts]) -> None:
        self.all_facts = tuple(facts)
        self.facts = tuple(fact for fact in facts if fact.window_us > 0)
        """Those with GPU work."""
        self.widest: dict[str, float] = {}
        """Cause → its share of the window on the rank that it takes most of."""

    @property
    def window_us(self) -> float:
        """Mean window of a rank."""
        return self.mean(lambda fact: fact.window_us)

    def mean(self, of: Callable[[RankFacts], float]) -> float:
        """Mean over the ranks with GPU work."""
        return sum(map(of, self.facts)) / len(self.facts) if self.facts else 0.0

    def share(self, of: Callable[[RankFacts], float]) -> float:
        """Time of all ranks over their windows."""
        whole = sum(fact.window_us for fact in self.facts)
        return sum(map(of, self.facts)) / whole if whole else 0.0

    def worst(self, of: Callable[[RankFacts], float]) -> RankFacts:
        """The rank with the largest share of something."""
        return max(self.facts, key=lambda fact: of(fact) / fact.window_us)

    def saved(self, cure: str) -> float:
        """What the job would lose without something, in µs: the mean of ranks that do not meet."""
        if self.together is not None:
            return self.together.saved_us(cure)
        return self.mean(lambda fact: fact.saved[cure])

    def idle(self, *parts: str) -> float:
        """Idle time of these parts, in µs, as a mean over ranks."""
        return self.mean(lambda fact: sum(fact.idle[part] for part in parts))

    @cached_property
    def together(self) -> RanksTogether | None:
        """Who waits for whom; None for a single rank, or ranks that share no collective."""
        return ranks_together(self.facts)

    def finding(
        self,
        cause: str,
        *,
        of: Callable[[RankFacts], float],
        worth_us: float,
        confidence: float,
        summary: str,
        evidence: Mapping[str, float | int | str | None],
        cure: str,
        where: Sequence[str | None] = (),
    ) -> TraceFinding:
        """A finding over all ranks; what was not measured is left out of its evidence.

        Args:
            cause: its name.
            of: the time that it takes in one rank's window (µs).
            worth_us: what a rank's window would lose without it.
            confidence: from 0 to 1.
            summary: one sentence.
            evidence: figures by name, with units in the names.
            cure: what to do.
            where: calls or lines, the most expensive first.
        """
        share = self.share(of)
        self.widest[cause] = max(of(fact) / fact.window_us for fact in self.facts)
        steps = [fact.summary.step_us for fact in self.facts if fact.summary.step_us]
        known = {key: value for key, value in evidence.items() if value is not None}
        known["window_us"] = self.window_us
        known["window"] = self.facts[0].summary.window
        if steps:
            known["step_us"] = sum(steps) / len(steps)
        if len(self.facts) > 1:
            known["ranks"] = len(self.facts)
        return TraceFinding(
            cause=cause,
            share=share,
            worth_us=worth_us,
            confidence=round(confidence, 2),
            summary=summary,
            evidence={key: _rounded(value) for key, value in known.items()},
            where=[place for place in dict.fromkeys(where) if place],
            cure=cure,
        )


percent, time_text = quantity.percent, quantity.microseconds
"""How numbers are written in the sentences of a finding."""


def _rounded(value: float | str) -> float | int | str:
    return round(value, 4) if isinstance(value, float) else value
