"""Fragmentation of a queue's cluster over time: idle GPUs that its typical job cannot use.

F(M) of Weng et al., ATC 2023 (see `placement/fragmentation.py`), with the jobs of the trace as the
typical tasks. A job of several nodes is judged by what it asks of one of them. Only nodes that
changed are looked at anew.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.machine import ClusterState
from ridgeline.queue.node_room import NodeRoom
from ridgeline.queue.pool import NodePool
from ridgeline.queue.wants import NodePiece, Wish

POPULAR = 0.95
"""Typical are the most frequent pieces, until they make up this share of all jobs."""


class CountedFragments:
    """F of nodes that differ by their free GPUs alone."""

    def __init__(self, state: ClusterState, pool: NodePool) -> None:
        self._counts = pool.with_free()
        pieces = np.minimum(np.array(state.size), pool.largest)
        larger = [float((pieces > free).mean()) for free in range(pool.largest + 1)]
        self._cost = [free * share for free, share in enumerate(larger)]

    def now(self) -> float:
        """F of the cluster, in GPUs."""
        return sum(a * b for a, b in zip(self._counts, self._cost, strict=True))


class DetailedFragments:
    """F of nodes that are told apart."""

    def __init__(self, state: ClusterState, pool: DetailedPool) -> None:
        self._pool = pool
        counted = Counter(_typical(one) for one in state.asked)
        chosen: list[tuple[NodePiece, int]] = []
        for piece, times in counted.most_common():
            if sum(count for _, count in chosen) >= POPULAR * len(state.asked):
                break
            chosen.append((piece, times))
        total = sum(count for _, count in chosen)
        self._pieces = [(piece, count / total) for piece, count in chosen]
        self._of = [self._room(room) for room in pool.rooms]
        self._sum = sum(self._of)
        pool.touched.clear()

    def now(self) -> float:
        """F of the cluster, in GPUs."""
        for node in self._pool.touched:
            found = self._room(self._pool.rooms[node])
            self._sum += found - self._of[node]
            self._of[node] = found
        self._pool.touched.clear()
        return max(0.0, self._sum)

    def _room(self, room: NodeRoom) -> float:
        left = room.free_gpus()
        return sum(share * (left - room.usable(piece)) for piece, share in self._pieces)


Fragments = CountedFragments | DetailedFragments


def fragments_of(state: ClusterState) -> Fragments | None:
    """How fragmented a state's cluster is; None: it is one pool, and never is."""
    if isinstance(state.pool, NodePool):
        return CountedFragments(state, state.pool)
    if isinstance(state.pool, DetailedPool) and len(state.pool.rooms) > 1:
        return DetailedFragments(state, state.pool)
    return None


def _typical(wish: Wish) -> NodePiece:
    return wish.single or wish.full or wish.rest or NodePiece(gpus=0)
