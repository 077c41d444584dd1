"""Nodes that fail and come back: exponential times between failures, a fixed time for repair."""

from __future__ import annotations

import heapq

import numpy as np

from ridgeline.queue.machine import ClusterState
from ridgeline.queue.pool import NodePool


class NodeFailures:
    """When nodes fail, drawn from a seed; jobs on them fall back to their checkpoints."""

    def __init__(self, state: ClusterState, seed: int) -> None:
        if not isinstance(state.pool, NodePool) or not state.cluster.node_mtbf_hours:
            raise TypeError("nodes fail, a pool does not")
        self.state, self.pool = state, state.pool
        self._random = np.random.default_rng(seed)
        count = len(self.pool.sizes)
        self._between_seconds = state.cluster.node_mtbf_hours * 3600.0 / count
        self._repair_seconds = state.cluster.node_repair_hours * 3600.0
        self._next_failure = self._draw(0.0)
        self._mended: list[tuple[float, int]] = []

    def next_moment(self) -> float:
        """The next failure or the end of the next repair."""
        return min(self._next_failure, self._mended[0][0] if self._mended else self._next_failure)

    def strike(self) -> list[int]:
        """Do what is due by now; returns the jobs that lost their node."""
        now, struck = self.state.now, list[int]()
        while self._mended and self._mended[0][0] <= now:
            self.pool.reopen(heapq.heappop(self._mended)[1])
        while self._next_failure <= now:
            node = int(self._random.integers(len(self.pool.sizes)))
            self._next_failure = self._draw(self._next_failure)
            if any(node == one for _, one in self._mended):
                continue  # it is down already
            for job, held in list(self.state.held.items()):
                if any(node == one for one, _ in held):
                    self.state.interrupt(job)
                    struck.append(job)
            self.pool.close(node)
            heapq.heappush(self._mended, (now + self._repair_seconds, node))
        return struck

    def _draw(self, after: float) -> float:
        return after + float(self._random.exponential(self._between_seconds))
