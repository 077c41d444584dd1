"""How much of a cohort's GPUs a queue may use: Kueue's arithmetic of quotas that are lent.

Kueue's documentation, "Cluster Queue" (borrowing and lending limits) and "Cohort" (trees). A queue
or cohort keeps for itself what its lending limit does not let go. What it uses beyond that counts
against its parent; beyond its quota it borrows, at most its borrowing limit. A tree gives as much
as its root has. Fair sharing ("Preemption", share value): what a member borrows, of all that its
cohort could have, for its weight. Of several flavors both are added up (Kueue's KEP 8902 says so of
its present arithmetic).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.queue.shares import CohortShare, QueueShare
from ridgeline.queue.waiting import Rank

UNLIMITED = float("inf")


@dataclass(slots=True, kw_only=True)
class _Node:
    """A queue or a cohort."""

    quota: float
    """Its own and, of a cohort, what its members lend."""
    borrowing_limit: float
    lending_limit: float
    parent: _Node | None = None
    weight: float = 1.0
    used: float = 0.0
    """By its jobs or, of a cohort, of its members beyond what they keep."""
    children: list[_Node] = field(default_factory=list)
    peers: list[list[_Node]] = field(default_factory=list)
    """The same queue or cohort in all trees, by resource and flavor; empty: there is one tree."""
    queue: str | None = None
    """The name of a queue; none: it is a cohort."""

    @property
    def kept(self) -> float:
        """What it never lends."""
        return max(0.0, self.quota - self.lending_limit)

    def available(self) -> float:
        """How much more it may use now; below 0 where more is in use than there is."""
        if self.parent is None:
            return self.quota - self.used
        from_parent = self.parent.available()
        lent_in = self.quota - self.kept
        used_of_parent = max(0.0, self.used - self.kept)
        allowed = lent_in - used_of_parent + self.borrowing_limit
        return max(0.0, self.kept - self.used) + min(allowed, from_parent)

    def most(self) -> float:
        """How much it could use if nobody else used anything."""
        if self.parent is None:
            return self.quota
        lent_in = self.quota - self.kept
        return self.kept + min(lent_in + self.borrowing_limit, self.parent.most())

    def share(self) -> float:
        """What it borrows of all that its cohort could have, for its weight; 0: nothing.

        Of the resource of which that is most, and of flavors together: what it leaves of its quota
        of one makes up for no other.
        """
        most = max(_borrowed_share(nodes) for nodes in self.peers or [[self]])
        if not most:
            return 0.0
        return most / self.weight if self.weight else UNLIMITED

    def line(self) -> list[_Node]:
        """The root, the cohorts below it down to this one, and itself."""
        found = [self]
        while found[-1].parent is not None:
            found.append(found[-1].parent)
        return found[::-1]

    def add(self, amount: float) -> None:
        """Use so much more, or less."""
        before = max(0.0, self.used - self.kept)
        self.used += amount
        if self.parent is not None:
            self.parent.add(max(0.0, self.used - self.kept) - before)


class QuotaTree:
    """Queues in their cohorts, with what each uses.

    What no quota names of the cluster belongs to the cohort without a name, in which all queues
    are that name none.
    """

    def __init__(
        self,
        names: Iterable[str],
        queues: Mapping[str, QueueShare],
        cohorts: Mapping[str, CohortShare],
        gpus: float,
    ) -> None:
        self._cohorts: dict[str, _Node] = {}
        self._queues: dict[str, _Node] = {}
        self._cohort_of: dict[str, str] = {}
        for name in cohorts:
            self._cohort(name, cohorts)
        for name in dict.fromkeys([*queues, *names]):
            share = queues.get(name, QueueShare())
            parent = self._cohort(share.cohort, cohorts)
            self._queues[name] = _Node(
                quota=share.quota,
                borrowing_limit=_limit(share.borrowing_limit),
                lending_limit=_limit(share.lending_limit),
                weight=share.weight,
                parent=parent,
                queue=name,
            )
            parent.children.append(self._queues[name])
        named = sum(one.quota for one in (*self._queues.values(), *self._cohorts.values()))
        self._cohort("", cohorts).quota += max(0.0, gpus - named)
        for node in self._cohorts.values():
            if node.parent is None:
                _gather(node)

    def quota(self, queue: str) -> float:
        """What is a queue's own."""
        return self._queues[queue].quota

    def used(self, queue: str) -> float:
        """What a queue uses."""
        return self._queues[queue].used

    def borrows(self, queue: str) -> bool:
        """Whether a queue uses more than its own."""
        return self._queues[queue].used > self._queues[queue].quota

    def available(self, queue: str) -> float:
        """How much more a queue may use now."""
        return self._queues[queue].available()

    def most(self, queue: str) -> float:
        """How much a queue could use if nobody else used anything."""
        return self._queues[queue].most()

    def shares(self, queue: str) -> list[float]:
        """What a queue and the cohorts that it is in borrow for their weights, the root's last."""
        return [one.share() for one in reversed(self._queues[queue].line())]

    def rival_shares(self, queue: str, other: str) -> tuple[float, float]:
        """What two queues, or the cohorts that part them, borrow for their weights."""
        pairs = zip(self._queues[queue].line(), self._queues[other].line(), strict=False)
        first, second = next((a, b) for a, b in pairs if a is not b)
        return first.share(), second.share()

    def largest_share(self, queue: str, heads: Mapping[str, Rank]) -> str | None:
        """The queue that is the first to give something up for a job of a queue; None: nobody is.

        From the root down it is the child that borrows most for its weight, a cohort before a
        queue. Who borrows nothing is protected, but for that queue and the cohorts that it is in.

        Args:
            queue: Whose job it is.
            heads: Queues that have anything to give, and what decides between equals: the least.
        """
        line = self._queues[queue].line()
        return _largest_share(line[0], line, heads)

    def root_of(self, queue: str) -> int:
        """Queues with one root lend to each other."""
        node = self._queues[queue]
        while node.parent is not None:
            node = node.parent
        return id(node)

    def add(self, queue: str, amount: float) -> None:
        """Let a queue use so much more, or less."""
        self._queues[queue].add(amount)

    def share_with(self, trees: Sequence[Sequence[QuotaTree]]) -> None:
        """Let shares be of all these trees, by resource and flavor; this is one of them."""
        for name, queue in self._queues.items():
            queue.peers = [[one for tree in row if (one := tree._queues.get(name))]
                           for row in trees]  # fmt: skip
        for name, cohort in self._cohorts.items():
            cohort.peers = [[one for tree in row if (one := tree._cohorts.get(name))]
                            for row in trees]  # fmt: skip

    def _cohort(self, name: str, cohorts: Mapping[str, CohortShare]) -> _Node:
        if name not in self._cohorts:
            share = cohorts.get(name, CohortShare())
            parent = self._cohort(share.parent, cohorts) if share.parent else None
            self._cohorts[name] = _Node(
                quota=share.quota,
                borrowing_limit=_limit(share.borrowing_limit),
                lending_limit=_limit(share.lending_limit),
                weight=share.weight,
                parent=parent,
            )
            if parent is not None:
                parent.children.append(self._cohorts[name])
        return self._cohorts[name]


def _largest_share(cohort: _Node, line: Sequence[_Node], heads: Mapping[str, Rank]) -> str | None:
    found: list[tuple[float, bool, Rank, str]] = []
    for child in cohort.children:
        share = child.share()
        if not share and not any(child is one for one in line):
            continue
        is_queue = child.queue is not None
        name = child.queue if is_queue else _largest_share(child, line, heads)
        if name is not None and name in heads:
            found.append((-share, is_queue, heads[name], name))
    return min(found)[-1] if found else None


def _borrowed_share(nodes: Sequence[_Node]) -> float:
    """What the flavors of one resource are borrowed, of all that could be lent of them."""
    borrowed = sum(max(0.0, one.used - one.quota) for one in nodes)
    if borrowed <= 0.0:
        return 0.0
    lendable = sum(one.parent.most() for one in nodes if one.parent is not None)
    return borrowed / lendable if lendable > 0.0 else 0.0


def _limit(given: float | None) -> float:
    return UNLIMITED if given is None else float(given)


def _gather(node: _Node) -> None:
    """Count what members lend to a cohort's own."""
    for child in node.children:
        _gather(child)
        node.quota += child.quota - child.kept
