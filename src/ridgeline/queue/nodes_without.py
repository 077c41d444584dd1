"""Nodes as they would be without some of the jobs that run there, by sums or by asking them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.detailed_pool import DetailedPool, Placed, domains_of
from ridgeline.queue.wants import Level, NodePiece, Wish

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_ABOUT = 1e-6


@dataclass(frozen=True, slots=True)
class NodesWithout:
    """Nodes without the first so many of the outranked, by sums: never less than there is."""

    pool: DetailedPool
    amounts: Floats
    """GPUs, cores and memory of each node."""

    def counts(self, piece: NodePiece, *, single: bool = False) -> Ints:
        """How many times each node would hold a piece."""
        gpus, cpu, memory = self.amounts
        asked = piece.gpus + piece.milli / 1000 + (_ABOUT if piece.gpu_slice else 0.0)
        holds: NDArray[np.bool_] = (gpus >= asked - _ABOUT / 2) & (cpu >= piece.cpu_milli)
        holds &= (memory >= piece.memory_bytes) & self.pool.admitting(piece)
        if not single:
            return np.asarray(holds, dtype=np.int64)
        times = np.floor(gpus + _ABOUT)
        if piece.cpu_milli:
            times = np.minimum(times, cpu // piece.cpu_milli)
        if piece.memory_bytes:
            times = np.minimum(times, memory // piece.memory_bytes)
        return np.asarray(times * holds, dtype=np.int64)

    def domains(self, level: Level) -> Ints:
        """The domain that each node is in."""
        return self.pool.domains(level)


@dataclass(frozen=True, slots=True)
class AskedNodes:
    """Nodes without the first so many of the outranked; those with parts of GPUs are asked."""

    sums: NodesWithout
    rows: Ints
    """The pieces that are given back, by their rows."""
    node: Ints
    """The node of each of them."""
    placed: Sequence[Placed | None]
    """What stands in all rows."""

    def counts(self, piece: NodePiece, *, single: bool = False) -> Ints:
        """How many times each node would hold a piece."""
        times = self.sums.counts(piece, single=single)
        for node in np.flatnonzero(times).tolist():
            room = self.sums.pool.rooms[node]
            if not (room.parts or room.grids or piece.gpu_slice):
                continue
            room = room.copy()
            for row in self.rows[self.node == node].tolist():
                if (one := self.placed[row]) is not None:
                    room.give(one.piece, (one.gpu, one.slots))
            times[node] = room.pieces_that_fit(piece) if single else int(room.holds(piece))
        return times

    def domains(self, level: Level) -> Ints:
        """The domain that each node is in."""
        return self.sums.domains(level)


def lacked_nodes(wish: Wish, nodes: NodesWithout) -> Ints | None:
    """How many nodes more a job needs in each domain; None: its GPUs may lie anywhere."""
    if wish.single is not None:
        return None
    pieces = [nodes.counts(piece) > 0 for piece, _ in wish.pieces()]
    domain = domains_of(wish, nodes)
    most = int(domain.max()) + 1
    lacks = max(1, wish.num_full) - np.bincount(domain[pieces[0]], minlength=most)
    if len(pieces) > 1:
        either = np.bincount(domain[pieces[0] | pieces[1]], minlength=most)
        lacks = np.maximum(lacks, wish.num_full + 1 - either)
    return np.asarray(lacks, dtype=np.int64)
