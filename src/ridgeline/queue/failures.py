"""Nodes that go away and come back: they fail, or are spot capacity that is taken.

Times between failures, and between interruptions of spot nodes, are exponential; repair, and the
wait for another spot node, take a fixed time.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from ridgeline.queue.cluster import QueuedCluster
from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.machine import ClusterState
from ridgeline.queue.pool import NodePool

HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cause:
    """Nodes of one group that go for one reason."""

    group: int
    first: int
    """The first node of the group."""
    count: int
    rate_per_second: float
    """How often any node of the group goes."""
    away_seconds: float


class NodeOutages:
    """When nodes go, drawn from a seed; jobs on them fall back to their checkpoints."""

    def __init__(self, state: ClusterState, seed: int) -> None:
        if not isinstance(state.pool, NodePool | DetailedPool):
            raise TypeError("nodes fail, a pool does not")
        self.state, self.pool = state, state.pool
        self._causes = _causes(state.cluster)
        self._random = np.random.default_rng(seed)
        rates = np.array([one.rate_per_second for one in self._causes])
        self._rate = float(rates.sum())
        self._parts = rates / self._rate
        self._next = self._draw(0.0)
        self._back: list[tuple[float, int]] = []
        self.away_seconds = [0.0] * len(state.cluster.nodes)
        """By group: what its nodes were away, together."""

    def next_moment(self) -> float:
        """The next node that goes or comes back."""
        return min(self._next, self._back[0][0] if self._back else self._next)

    def any_away(self) -> bool:
        """Whether any node will come back."""
        return bool(self._back)

    def strike(self) -> tuple[list[int], list[int]]:
        """Do what is due by now; jobs that ran on lost nodes, and jobs that held a part there."""
        now, struck, partly = self.state.now, list[int](), list[int]()
        while self._back and self._back[0][0] <= now:
            self.pool.reopen(heapq.heappop(self._back)[1])
        while self._next <= now:
            cause = self._causes[int(self._random.choice(len(self._causes), p=self._parts))]
            node = cause.first + int(self._random.integers(cause.count))
            self._next = self._draw(self._next)
            if any(node == one for _, one in self._back):
                continue  # it is away already
            for job, held in list(self.state.held.items()):
                if any(node == one for one, _ in held):
                    self.state.interrupt(job)
                    struck.append(job)
            for job, held in list(self.state.partly.items()):
                if any(node == one for one, _ in held):
                    self.pool.give(self.state.partly.pop(job))
                    partly.append(job)
            self.pool.close(node)
            self.away_seconds[cause.group] += cause.away_seconds
            heapq.heappush(self._back, (now + cause.away_seconds, node))
        return struck, partly

    def _draw(self, after: float) -> float:
        return after + float(self._random.exponential(1.0 / self._rate))


def outages_of(state: ClusterState, seed: int) -> NodeOutages | None:
    """The outages of a cluster; None: its nodes never go."""
    return NodeOutages(state, seed) if _causes(state.cluster) else None


def _causes(cluster: QueuedCluster) -> list[_Cause]:
    found: list[_Cause] = []
    first = 0
    for number, group in enumerate(cluster.nodes):
        spot = group.spot
        rates = [
            (1.0 / cluster.node_mtbf_hours if cluster.node_mtbf_hours else 0.0,
             cluster.node_repair_hours),
            (spot.interruptions_per_hour, spot.return_hours) if spot else (0.0, 0.0),
        ]  # fmt: skip
        found += [
            _Cause(
                group=number, first=first, count=group.count,
                rate_per_second=group.count * per_hour / HOUR_SECONDS,
                away_seconds=away_hours * HOUR_SECONDS,
            )
            for per_hour, away_hours in rates
            if per_hour
        ]  # fmt: skip
        first += group.count
    return found
