"""Fair shares over a tree of queues and several resources: dominant resource fairness.

Flat: who has the smallest dominant share, that is the largest of its shares of each resource,
divided by its weight, starts next (Ghodsi et al., "Dominant Resource Fairness", NSDI 2011,
Algorithm 1, section 4.3 for weights).

In a tree: from the root down, each time into the child with the smallest weighted dominant share.
What an inner queue has is not the sum of its children's: then one child that uses only what others
do not want would starve its siblings. Its children are scaled to the smallest among them that still
wants something, and then summed (Bhattacharya et al., "Hierarchical Scheduling for Diverse
Datacenter Workloads", SoCC 2013, section 4.2: dynamic H-DRF).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.errors import InputError
from ridgeline.queue.shares import QueueShare
from ridgeline.queue.waiting import Rank

Amounts = tuple[float, ...]
"""The amounts of each resource, in one order."""


@dataclass(slots=True)
class _Branch:
    name: str
    weight: float
    parent: _Branch | None
    children: list[_Branch] = field(default_factory=list)
    used: list[float] = field(default_factory=list)
    """What a leaf has."""


class ShareTree:
    """Queues in a tree, and what each has of each resource."""

    def __init__(
        self, leaves: Sequence[str], queues: Mapping[str, QueueShare], capacity: Sequence[float]
    ) -> None:
        self.capacity = tuple(capacity)
        self._root = _Branch("", 1.0, None)
        self._branches: dict[str, _Branch] = {}
        for name in leaves:
            leaf = self._branch(name, queues)
            leaf.used = [0.0] * len(self.capacity)
        for branch in self._branches.values():
            if branch.used and branch.children:
                raise InputError(
                    f"queue {branch.name} has jobs of its own and is the parent of"
                    f" {branch.children[0].name}; jobs belong to queues without parts"
                )

    def change(self, leaf: str, amounts: Amounts, sign: int) -> None:
        """Note that a queue has so much more (sign 1) or less (-1)."""
        used = self._branches[leaf].used
        for place, amount in enumerate(amounts):
            used[place] += sign * amount

    def share_of(self, leaf: str) -> float:
        """A leaf's dominant share over its weight."""
        branch = self._branches[leaf]
        return self._dominant(branch.used) / branch.weight

    def poorest(self, wanting: Mapping[str, Rank]) -> str:
        """The leaf that is next, of those that want something and could have it.

        Where shares are equal, the one whose job comes first in rank.
        """
        branch = self._root
        counted: dict[str, list[float]] = {}
        self._count(self._root, wanting, counted)
        while branch.children and not branch.used:
            branch = min(
                (one for one in branch.children if self._first(one, wanting) is not None),
                key=lambda one: (
                    self._dominant(counted[one.name]) / one.weight, self._first(one, wanting)
                ),
            )  # fmt: skip
        return branch.name

    def _branch(self, name: str, queues: Mapping[str, QueueShare]) -> _Branch:
        if name in self._branches:
            return self._branches[name]
        share = queues.get(name, QueueShare())
        if not share.weight:
            raise InputError(
                f"queues.{name}: weight 0 is a share of nothing; only the policy quota takes it"
            )
        parent = self._branch(share.parent, queues) if share.parent else self._root
        branch = self._branches[name] = _Branch(name, share.weight, parent)
        parent.children.append(branch)
        return branch

    def _first(self, branch: _Branch, wanting: Mapping[str, Rank]) -> Rank | None:
        """The rank of the first job that a branch wants to start."""
        if branch.used:
            return wanting.get(branch.name)
        below = [self._first(one, wanting) for one in branch.children]
        return min((rank for rank in below if rank is not None), default=None)

    def _count(
        self, branch: _Branch, wanting: Mapping[str, Rank], counted: dict[str, list[float]]
    ) -> list[float]:
        """What a branch has, as it counts against it."""
        if branch.used:
            found = branch.used
        else:
            below = [(one, self._count(one, wanting, counted)) for one in branch.children]
            found = self._scaled_sum(
                [(amounts, one.weight, self._first(one, wanting) is not None)
                 for one, amounts in below]
            )  # fmt: skip
        counted[branch.name] = found
        return found

    def _scaled_sum(self, children: Sequence[tuple[list[float], float, bool]]) -> list[float]:
        shares = [self._dominant(used) / weight for used, weight, wants in children if wants]
        least = min(shares, default=None)
        total = [0.0] * len(self.capacity)
        for used, weight, wants in children:
            own = self._dominant(used) / weight
            scale = least / own if wants and least is not None and own > 0.0 else 1.0
            for place, amount in enumerate(used):
                total[place] += scale * amount
        return total

    def _dominant(self, used: Sequence[float]) -> float:
        return max(
            (amount / whole for amount, whole in zip(used, self.capacity, strict=True) if whole),
            default=0.0,
        )
