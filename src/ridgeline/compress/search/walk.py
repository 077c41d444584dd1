"""Measuring along the path of combinations until the budget lies between two neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline.compress.evaluate.allowance import Allowance
from ridgeline.compress.search.budget import Combination, within
from ridgeline.records.compression import Attempt, Divergence, Quality

MOST_ATTEMPTS = 8
Measure = Callable[[Combination], tuple[Quality, Divergence]]


class Walk:
    """Where on the path the cheapest combination lies that is allowed, as far as was measured.

    `low` was allowed (the model as given always is), `high` was not, or is past the end.
    """

    def __init__(
        self, combinations: Sequence[Combination], before: Quality, target: Allowance
    ) -> None:
        self.combinations = combinations
        self.low, self.high = 0, len(combinations)
        self.attempts: list[Attempt] = []
        self._before = before
        self._target = target
        self._budget = target.loss_rise(before)
        self.next = self._inside(within(combinations, self._budget))

    @property
    def done(self) -> bool:
        """Nothing lies between the two."""
        return self.high - self.low <= 1

    def run(self, measure: Measure) -> None:
        """Measure, step on or back, until done or tired."""
        while not self.done and len(self.attempts) < MOST_ATTEMPTS:
            self.tell(self.next, *measure(self.combinations[self.next]))

    def tell(self, place: int, quality: Quality, divergence: Divergence) -> bool:
        """What was measured at a place; whether it was allowed.

        The next place is where the budget would be spent if losses were as far above or below
        their sum everywhere as they were here.
        """
        one = self.combinations[place]
        allowed = self._target.holds(self._before, quality, divergence)
        self.attempts.append(
            Attempt(
                predicted_kl=one.loss,
                kl=divergence.kl_mean,
                loss=quality.loss,
                cost=one.cost,
                allowed=allowed,
            )
        )
        if allowed:
            self.low = max(self.low, place)
        else:
            self.high = min(self.high, place)
            self.low = min(self.low, place - 1)
        spent = self._target.spent(self._before, quality, divergence)
        misled = spent / one.loss if spent > 0 and one.loss > 0 else 0.0
        aim = within(self.combinations, self._budget / misled) if misled else self.high - 1
        self.next = self._inside(aim)
        return allowed

    def _inside(self, place: int) -> int:
        """Strictly between the two; `low` where there is nothing."""
        return min(max(place, self.low + 1), max(self.low, self.high - 1))
