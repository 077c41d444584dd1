"""The fewest GPUs of one device that hold given MIG instances, and a bound that no cut can beat.

The bound: weights of profiles such that no cut weighs more than 1 make the weight of what is asked
for a lower bound on the GPUs (the dual of covering by cuts, Gilmore and Gomory 1961). All
ratios of small whole numbers are tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ridgeline.hardware.mig import Cut, MigGeometry

Counts = tuple[int, ...]
"""Instances by the place of their profile."""
_LARGEST_WEIGHT = 7
_MOST_STEPS = 20_000


class MigCover:
    """Covers demands for the instances of one geometry; remembers what it has found."""

    def __init__(self, geometry: MigGeometry) -> None:
        self.num_profiles = len(geometry.profiles)
        self.cuts = sorted({_counts(cut, self.num_profiles) for cut in geometry.cuts()})
        self._rows = np.array(self.cuts)
        self.weights = self._all_weights()
        """[weightings, profiles]; no cut weighs more than 1."""
        self._found: dict[Counts, list[Counts]] = {}
        self._vain: set[tuple[Counts, int]] = set()
        self._steps = 0

    def _all_weights(self) -> NDArray[np.float64]:
        """Weightings that cannot be raised anywhere; the whole GPU's profile weighs 1."""
        numbers = range(_LARGEST_WEIGHT + 1)
        small = np.array(list(itertools.product(numbers, repeat=self.num_profiles - 1)))[1:]
        # The largest profile is a whole GPU, and stands in no other cut.
        others = self._rows[self._rows[:, -1] == 0][:, :-1]
        loads = small @ others.T
        most = loads.max(axis=1)
        tight = ((loads == most[:, None]).astype(np.int64) @ (others > 0)) > 0
        kept = tight.all(axis=1)
        scaled = np.unique(np.round(small[kept] / most[kept][:, None], 12), axis=0)
        return np.column_stack([scaled, np.ones(len(scaled))])

    def at_least(self, demand: Counts) -> int:
        """GPUs that any cover takes."""
        if not any(demand):
            return 0
        return math.ceil(float((self.weights @ np.array(demand)).max()) - 1e-9)

    def cover(self, demand: Counts) -> list[Counts]:
        """Cuts that hold the demand: the fewest, but for demands that take too long to search."""
        if demand not in self._found:
            self._found[demand] = self._searched(demand)
        return self._found[demand]

    def _searched(self, demand: Counts) -> list[Counts]:
        greedy = self._greedy(demand)
        self._steps = 0
        for gpus in range(self.at_least(demand), len(greedy)):
            found = self._within(demand, gpus)
            if found is not None:
                return found
            if self._steps > _MOST_STEPS:
                break
        return greedy

    def _greedy(self, demand: Counts) -> list[Counts]:
        chosen = []
        left = demand
        while any(left):
            cut = next(self._useful(left))
            chosen.append(cut)
            left = _less(left, cut)
        return chosen

    def _within(self, demand: Counts, gpus: int) -> list[Counts] | None:
        """A cover by so many GPUs."""
        if not any(demand):
            return []
        if self.at_least(demand) > gpus or (demand, gpus) in self._vain:
            return None
        self._steps += 1
        if self._steps > _MOST_STEPS:
            return None
        for cut in self._useful(demand):
            rest = self._within(_less(demand, cut), gpus - 1)
            if rest is not None:
                return [cut, *rest]
        if self._steps <= _MOST_STEPS:
            self._vain.add((demand, gpus))
        return None

    def _useful(self, demand: Counts) -> Iterator[Counts]:
        """Cuts with the largest instance that is asked for, those that give most of it first.

        Some GPU holds that instance, so one of these cuts is in any cover.
        """
        asked = np.array(demand)
        largest = int(np.flatnonzero(asked)[-1])
        cuts = self._rows[self._rows[:, largest] > 0]
        given = np.minimum(cuts, asked)
        best = self.weights[int((self.weights @ asked).argmax())]
        seen: set[bytes] = set()
        for place in np.argsort(-(given @ best), kind="stable"):
            key = given[place].tobytes()
            if key not in seen:
                seen.add(key)
                yield tuple(cuts[place].tolist())


def _counts(cut: Cut, num_profiles: int) -> Counts:
    return tuple(cut.count(place) for place in range(num_profiles))


def _less(demand: Counts, cut: Counts) -> Counts:
    return tuple(max(0, want - have) for want, have in zip(demand, cut, strict=True))
