"""The combinations of schemes worth measuring, the dearest first, and the walk along them.

Each unit has options (cost, loss). Losses of single units are taken to add up, so this is a
multiple-choice knapsack: least cost under a budget of loss. Its Lagrangian solutions, one for every
price of loss, lie on one path: start with every option that loses least and, step by step, take
the change on the lower hull of some unit that saves most cost for its loss (Shoham & Gersho,
"Efficient bit allocation for an arbitrary set of quantizers", IEEE Trans. ASSP 36, 1988). No
combination off the path is both cheaper and better than one on it and its neighbour. Sums of losses
mislead, so `Walk` measures along the path until the budget lies between two neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ridgeline.compress.evaluate.allowance import Allowance
from ridgeline.records.compression import Attempt, Divergence, Quality


@dataclass(frozen=True, slots=True)
class Option:
    """What one unit may become."""

    scheme: str
    cost: float
    loss: float


@dataclass(frozen=True, slots=True)
class Combination:
    """An option for every unit."""

    chosen: Mapping[str, Option]

    @property
    def cost(self) -> float:
        """The sum of the options' costs."""
        return sum(option.cost for option in self.chosen.values())

    @property
    def loss(self) -> float:
        """Sum, which is only a prediction."""
        return sum(option.loss for option in self.chosen.values())


def lower_hull(options: Sequence[Option]) -> list[Option]:
    """The options that are best at some price of loss, from the least loss to the least cost.

    >>> three = [Option("a", 8, 0.0), Option("b", 6, 3.0), Option("c", 4, 1.0)]
    >>> [one.scheme for one in lower_hull(three)]
    ['a', 'c']
    """
    hull: list[Option] = []
    for option in sorted(options, key=lambda one: (one.loss, one.cost)):
        if hull and option.cost >= hull[-1].cost:
            continue
        while len(hull) >= 2 and _rate(hull[-2], hull[-1]) <= _rate(hull[-1], option):
            hull.pop()
        hull.append(option)
    return hull


def path(options: Mapping[str, Sequence[Option]]) -> list[Combination]:
    """All Lagrangian combinations, each one change away from the one before it.

    Args:
        options: Of each unit, at least one.
    """
    hulls = {unit: lower_hull(of) for unit, of in options.items()}
    chosen = {unit: hull[0] for unit, hull in hulls.items()}
    changes = [
        (_rate(before, after), unit, place)
        for unit, hull in hulls.items()
        for place, (before, after) in enumerate(pairwise(hull), start=1)
    ]
    combinations = [Combination(dict(chosen))]
    # Along a hull the rates fall, so a unit's own changes come in their order.
    for _, unit, place in sorted(changes, key=lambda one: (-one[0], one[2])):
        chosen[unit] = hulls[unit][place]
        combinations.append(Combination(dict(chosen)))
    return combinations


def within(combinations: Sequence[Combination], budget: float) -> int:
    """Place of the cheapest whose predicted loss is within a budget."""
    return max((place for place, one in enumerate(combinations) if one.loss <= budget), default=0)


def _rate(before: Option, after: Option) -> float:
    """Cost saved per loss; infinite for what loses nothing."""
    lost = after.loss - before.loss
    return (before.cost - after.cost) / lost if lost > 0 else float("inf")


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
