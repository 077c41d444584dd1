"""The kind of part for every workload, so that all GPUs together cost least.

All replicas of a workload have one kind of part, since a Service gives each as many requests. So a
plan is a choice of a kind for each, and its cost follows: MIG instances by `MigCover`, equal parts
by rounding up. Choices are improved one and two at a time from several beginnings; then branch and
bound goes through all others, for as long as it is given. What no choice can beat is the sum of
each workload's cheapest parts, a part priced by weights under which no GPU holds more than its
price (the dual of the covering problem).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.hardware.mig import Cut, MigGeometry, mig_geometry
from ridgeline.queue.share.capacity import PartChoice
from ridgeline.queue.share.slots import MODES, SlotKind

Choice = tuple[int, ...]
"""For each workload the place of its choice among its options."""
MOST_NODES = 20_000
"""Partial choices that are looked at for a proof, where nobody says otherwise."""
MOST_STARTS = 5
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What was chosen, and how good that is."""

    chosen: list[PartChoice]
    cost: float
    at_least: float
    """No choice costs less."""
    exhausted: bool
    """Every choice was looked at or ruled out."""


class PartAssigner:
    """Chooses kinds of parts.

    Args:
        options: For each workload what will do.
        prices: Of one GPU by device.
    """

    def __init__(
        self, options: Sequence[Sequence[PartChoice]], prices: Mapping[str, float]
    ) -> None:
        self.options = options
        self.prices = prices
        self.covers: dict[str, MigCover] = {}
        for one in (choice for row in options for choice in row):
            geometry = mig_geometry(one.kind.device)
            if geometry is not None and one.kind.device.name not in self.covers:
                self.covers[one.kind.device.name] = MigCover(geometry)
        self._parts, self.bound = self._priced_parts()

    def assign(self, most_nodes: int = MOST_NODES) -> Assignment:
        """Search for the cheapest choice."""
        starts = sorted(self._starts(), key=self._rated)[:MOST_STARTS]
        best = min((self._improved(start) for start in starts), key=self._rated)
        best, exhausted = self._branched(best, most_nodes)
        cost = self.cost(best)
        return Assignment(
            chosen=[row[place] for row, place in zip(self.options, best, strict=True)],
            cost=cost,
            at_least=cost if exhausted else min(self.bound, cost),
            exhausted=exhausted,
        )

    def cost(self, choice: Sequence[int]) -> float:
        """The price of all GPUs of a choice, or of a choice for the first workloads."""
        equal, slices = self.demands(choice)
        total = sum(
            self.prices[device] * math.ceil(count / sharers)
            for (device, _, sharers), count in equal.items()
        )
        return total + sum(
            self.prices[device] * len(self.covers[device].cover(counts))
            for device, counts in slices.items()
        )

    def demands(
        self, choice: Sequence[int]
    ) -> tuple[dict[tuple[str, str, int], int], dict[str, Counts]]:
        """Equal parts by device, mode and sharers; MIG instances by device."""
        equal: dict[tuple[str, str, int], int] = defaultdict(int)
        slices: dict[str, list[int]] = {}
        for row, place in zip(self.options, choice, strict=False):
            one = row[place]
            name = one.kind.device.name
            if one.kind.mode == "mig":
                counts = slices.setdefault(name, [0] * self.covers[name].num_profiles)
                counts[one.kind.place] += one.count
            else:
                equal[name, one.kind.mode, one.kind.sharers] += one.count
        return equal, {name: tuple(counts) for name, counts in slices.items()}

    def _rated(self, choice: Choice) -> tuple[float, float, float]:
        """Cost, then isolation, then what is left over."""
        chosen = [row[place] for row, place in zip(self.options, choice, strict=True)]
        worst = sum(MODES.index(one.kind.mode) * one.count for one in chosen)
        parts = sum(row[place] for row, place in zip(self._parts, choice, strict=True))
        return round(self.cost(choice), 9), worst, float(parts)

    # -- beginnings and small changes

    def _starts(self) -> list[Choice]:
        """The cheapest parts, and the same inside of one way of sharing for all that it serves."""
        cheapest = [int(np.argmin(row)) for row in self._parts]
        starts = {tuple(cheapest)}
        ways = {(one.kind.mode, one.kind.sharers) for row in self.options for one in row}
        for way in ways:
            start = list(cheapest)
            for number, row in enumerate(self.options):
                places = [place for place, one in enumerate(row)
                          if (one.kind.mode, one.kind.sharers) == way]  # fmt: skip
                if places:
                    start[number] = min(places, key=lambda place: self._parts[number][place])
            starts.add(tuple(start))
        return sorted(starts)

    def _improved(self, choice: Choice) -> Choice:
        """Give one workload after the other its best kind, then whole kinds, while that helps."""
        rated = self._rated(choice)
        while True:
            before = rated
            for number, row in enumerate(self.options):
                for place in range(len(row)):
                    other = (*choice[:number], place, *choice[number + 1 :])
                    if self._rated(other) < rated:
                        choice, rated = other, self._rated(other)
            for other in self._moved_kinds(choice):
                if self._rated(other) < rated:
                    choice, rated = other, self._rated(other)
            if rated >= before:
                return choice

    def _moved_kinds(self, choice: Choice) -> Iterator[Choice]:
        """All workloads of one kind moved to another together, where that will do for them."""
        kinds: dict[SlotKind, list[int]] = defaultdict(list)
        for number, place in enumerate(choice):
            kinds[self.options[number][place].kind].append(number)
        for numbers in kinds.values():
            for target in (one.kind for one in self.options[numbers[0]]):
                moved = list(choice)
                for number in numbers:
                    for place, one in enumerate(self.options[number]):
                        if one.kind is target:
                            moved[number] = place
                yield tuple(moved)

    # -- all of them

    def _branched(self, best: Choice, most_nodes: int) -> tuple[Choice, bool]:
        """Go through every choice that may be cheaper; whether all were gone through."""
        lowest = [float(row.min()) for row in self._parts]
        rest = np.concatenate([np.cumsum(lowest[::-1])[::-1], [0.0]])
        orders = [[int(place) for place in np.argsort(row, kind="stable")] for row in self._parts]
        cost, nodes = self.cost(best), 0
        stack: list[tuple[Choice, float]] = [((), 0.0)]
        while stack:
            if self.bound >= cost - _SLACK:
                return best, True
            partial, parts = stack.pop()
            number = len(partial)
            if number == len(self.options):
                found = self.cost(partial)
                if found < cost - _SLACK:
                    best, cost = partial, found
                continue
            nodes += 1
            if nodes > most_nodes:
                return best, False
            for place in reversed(orders[number]):
                longer = (*partial, place)
                more = parts + float(self._parts[number][place])
                if self._rounded(more + float(rest[number + 1])) >= cost - _SLACK:
                    continue
                if self.cost(longer) < cost - _SLACK:
                    stack.append((longer, more))
        return best, True

    # -- the bound

    def _priced_parts(self) -> tuple[list[NDArray[np.float64]], float]:
        """What each option weighs in money under the best weights found, and the bound by them."""
        devices = sorted({one.kind.device.name for row in self.options for one in row})
        tables = {name: [self._table(row, name) for row in self.options] for name in devices}
        best = dict.fromkeys(devices, 0)
        bound = -math.inf
        for _ in range(3):
            for name in devices:
                others = [
                    min((float(tables[other][number][:, best[other]].min())
                         for other in devices if other != name), default=math.inf)
                    for number in range(len(self.options))
                ]  # fmt: skip
                totals = sum(
                    np.minimum(table.min(axis=0), other)
                    for table, other in zip(tables[name], others, strict=True)
                )
                best[name] = int(np.argmax(totals))
                bound = max(bound, float(np.max(totals)))
        parts = [
            np.array([tables[one.kind.device.name][number][place, best[one.kind.device.name]]
                      for place, one in enumerate(row)])
            for number, row in enumerate(self.options)
        ]  # fmt: skip
        return parts, self._rounded(bound)

    def _table(self, row: Sequence[PartChoice], device: str) -> NDArray[np.float64]:
        """The weight of each option in money [options, weightings]; infinite on other devices."""
        weights = self.covers[device].weights if device in self.covers else np.ones((1, 1))
        table = np.full((len(row), len(weights)), math.inf)
        for place, one in enumerate(row):
            if one.kind.device.name == device:
                each = (
                    weights[:, one.kind.place] if one.kind.mode == "mig" else 1 / one.kind.sharers
                )
                table[place] = each * one.count * self.prices[device]
        return table

    def _rounded(self, bound: float) -> float:
        """Up to whole GPUs, where all have one price."""
        prices = set(self.prices.values())
        if len(prices) > 1:
            return bound
        price = prices.pop()
        return math.ceil(bound / price - _SLACK) * price if price else bound


Counts = tuple[int, ...]
"""Instances by the place of their profile."""
_LARGEST_WEIGHT = 7
_MOST_STEPS = 20_000


class MigCover:
    """Covers demands for the instances of one geometry; remembers what it has found.

    Weights of profiles such that no cut weighs more than 1 make the weight of what is asked for a
    lower bound on the GPUs (the dual of covering by cuts, Gilmore and Gomory 1961). All ratios of
    small whole numbers are tried.
    """

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
