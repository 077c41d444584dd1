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
from ridgeline.queue.piece_bits import PieceBits, bits_of
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
    """F of nodes that are told apart.

    What of a node a piece could use depends on the part or slice that it asks for, of which there
    are few kinds, and on whether the node holds it at all, which is asked of all pieces at once.
    """

    def __init__(self, state: ClusterState, pool: DetailedPool) -> None:
        self._pool = pool
        counted = Counter(_typical(one) for one in state.asked)
        chosen: dict[NodePiece, int] = {}
        covered = 0
        for piece, times in counted.most_common():
            if covered >= POPULAR * len(state.asked):
                break
            chosen[piece] = times
            covered += times
        self._pieces = PieceBits(list(chosen))
        self._covered = max(1, covered)
        kinds = [(bool(one.gpus), one.milli, one.gpu_slice) for one in chosen]
        numbers = np.array(list(chosen.values()), dtype=np.int64)
        self._kinds: list[tuple[NodePiece, list[int]]] = []
        """The kinds, and for each power of two: the pieces in whose number of jobs it is."""
        for kind in dict.fromkeys(kinds):
            alike = numbers * np.array([one == kind for one in kinds])
            piece = NodePiece(gpus=int(kind[0]), milli=kind[1], gpu_slice=kind[2])
            powers = range(int(alike.max()).bit_length())
            self._kinds.append((piece, [bits_of(alike >> power & 1 > 0) for power in powers]))
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
        free = room.free_gpus()
        held = self._pieces.held_by(room) if free else 0
        if not held:
            return free
        usable = 0.0
        for kind, powers in self._kinds:
            jobs = sum((held & bits).bit_count() << power for power, bits in enumerate(powers))
            usable += jobs * room.usable(kind) if jobs else 0.0
        return free - usable / self._covered


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
