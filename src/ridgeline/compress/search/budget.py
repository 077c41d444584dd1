"""The combinations of schemes worth measuring, in order from the dearest to the cheapest.

Each unit has options (cost, loss). Losses of single units are taken to add up, so this is a
multiple-choice knapsack: least cost under a budget of loss. Its Lagrangian solutions, one for every
price of loss, lie on one path: start with every option that loses least and, step by step, take
the change on the lower hull of some unit that saves most cost for its loss (Shoham & Gersho,
"Efficient bit allocation for an arbitrary set of quantizers", IEEE Trans. ASSP 36, 1988). No
combination off the path is both cheaper and better than one on it and its neighbour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


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
        """Sum."""
        return sum(option.cost for option in self.chosen.values())

    @property
    def loss(self) -> float:
        """Sum, which is only a prediction."""
        return sum(option.loss for option in self.chosen.values())


def lower_hull(options: Sequence[Option]) -> list[Option]:
    """Those that are best at some price of loss, from the least loss to the least cost.

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
