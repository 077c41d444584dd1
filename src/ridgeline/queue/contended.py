"""Whom a job must interrupt on nodes that are told apart, of those that it outranks.

What the outranked hold is kept as columns, a row for each piece on a node, so that what nodes would
have without the first so many of them is a sum over rows. Sums tell everything but where GPUs are
shared or split: there the few nodes that matter are asked themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.detailed_pool import DetailedHeld, DetailedPool, Placed, has_room
from ridgeline.queue.wants import Level, NodePiece, Wish

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_KEYS = 3
"""Numbers by which running jobs are ordered, at most."""
_ROWS = 256
_ABOUT = 1e-6


@dataclass(frozen=True, slots=True)
class _Prefix:
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
class _AskedNodes:
    """The same, with nodes whose GPUs are shared or split asked one by one."""

    sums: _Prefix
    node: Ints
    """The node of each piece that is given back."""
    placed: Sequence[Placed]

    def counts(self, piece: NodePiece, *, single: bool = False) -> Ints:
        """How many times each node would hold a piece."""
        times = self.sums.counts(piece, single=single)
        for node in np.flatnonzero(times).tolist():
            room = self.sums.pool.rooms[node]
            if not (room.parts or room.grids or piece.gpu_slice):
                continue
            room = room.copy()
            for place in np.flatnonzero(self.node == node).tolist():
                one = self.placed[place]
                room.give(one.piece, (one.gpu, one.slots))
            times[node] = room.pieces_that_fit(piece) if single else int(room.holds(piece))
        return times

    def domains(self, level: Level) -> Ints:
        """The domain that each node is in."""
        return self.sums.domains(level)


class ContendedNodes:
    """Running jobs by node, in the order in which they are interrupted."""

    def __init__(self, pool: DetailedPool, jobs: int) -> None:
        self._pool = pool
        self._keys = np.full((_KEYS, jobs), np.inf)
        self._runs = np.zeros(jobs, dtype=bool)
        self._held: dict[int, DetailedHeld] = {}
        self._rows_of: dict[int, list[int]] = {}
        self._free: list[int] = []
        self._job = np.zeros(0, dtype=np.int64)
        self._node = np.zeros(0, dtype=np.int64)
        self._amounts = np.zeros((3, 0))
        self._taken = np.zeros(0, dtype=bool)
        self._placed: list[Placed | None] = []
        self._on_node: dict[int, dict[int, None]] = {}
        """Rows by node."""

    def run(self, job: int, held: DetailedHeld) -> None:
        """Count what a job holds from now on."""
        self._held[job] = held
        rows = self._rows_of[job] = []
        for node, placed in held:
            if not self._free:
                self._grow()
            row = self._free.pop()
            rows.append(row)
            self._job[row], self._node[row], self._taken[row] = job, node, True
            piece = placed.piece
            self._amounts[:, row] = placed.gpus, piece.cpu_milli, piece.memory_bytes
            self._placed[row] = placed
            self._on_node.setdefault(node, {})[row] = None
        self._runs[job] = True

    def order(self, job: int, keys: Sequence[float]) -> None:
        """Set by what a running job is ordered; the smallest is interrupted first."""
        self._keys[:, job] = 0.0
        self._keys[: len(keys), job] = keys

    def leave(self, job: int) -> DetailedHeld:
        """Count what a job held no longer."""
        for row in self._rows_of.pop(job):
            self._taken[row] = False
            self._placed[row] = None
            del self._on_node[int(self._node[row])][row]
            self._free.append(row)
        self._runs[job] = False
        return self._held.pop(job)

    def reach(self, node: int, below: Floats) -> Floats:
        """What a node has for each of several, free or held by jobs ordered below a number."""
        room = self._pool.rooms[node]
        free = np.array([[room.free_gpus()], [room.cpu_milli], [room.memory_bytes]])
        rows = list(self._on_node.get(node, ()))
        outranked = self._keys[0, self._job[rows]][:, None] < below[None, :] + _ABOUT
        return np.asarray(free + self._amounts[:, rows] @ outranked)

    def victims(self, wish: Wish, below: float) -> list[int]:
        """The jobs ordered below a number that must go for another to fit; empty: no number does.

        The first in order go, as many as are needed; then whoever is not needed stays after all,
        the last in order first.
        """
        outranked = self._runs & (self._keys[0] < below)
        jobs = np.flatnonzero(outranked)
        rows = np.flatnonzero(self._taken & outranked[self._job])
        free = self._pool.free_amounts()
        if not len(jobs) or not has_room(wish, self._without(rows, free)):
            return []
        first, second, third = self._keys[:, jobs]
        jobs = jobs[np.lexsort((jobs, third, second, first))]
        place = np.zeros(len(self._runs), dtype=np.int64)
        place[jobs] = np.arange(len(jobs))
        rows = rows[np.argsort(place[self._job[rows]], kind="stable")]
        places = place[self._job[rows]]

        def enough(count: int, *, asked: bool) -> bool:
            given = rows[: np.searchsorted(places, count)]
            sums = self._without(given, free)
            return has_room(wish, self._asked(sums, given) if asked else sums)

        count = _fewest(lambda many: enough(many, asked=False), 0, len(jobs))
        if not enough(count, asked=True):
            if not enough(len(jobs), asked=True):
                return []
            count = _fewest(lambda many: enough(many, asked=True), count, len(jobs))
        given = rows[: np.searchsorted(places, count)]
        return self._needed(wish, given, self._asked(self._without(given, free), given))

    def _needed(self, wish: Wish, given: Ints, nodes: _AskedNodes) -> list[int]:
        """The jobs that must go indeed; all of them are on nodes that would hold pieces."""
        asked = [nodes.counts(piece) > 0 for piece, _ in wish.pieces()]
        if wish.single is not None:
            asked.append(nodes.counts(wish.single, single=True) > 0)
        holding = np.logical_or.reduce(asked)
        there = dict.fromkeys(self._job[given[holding[self._node[given]]]].tolist())
        room, needed = self._pool.imagined(), []
        for job in there:
            room.change(self._held[job], 1)
        for job in reversed(there):
            room.change(self._held[job], -1)
            if not room.fits(wish):
                room.change(self._held[job], 1)
                needed.append(job)
        return needed[::-1]

    def _without(self, rows: Ints, free: Floats) -> _Prefix:
        node = self._node[rows]
        given = [np.bincount(node, weights=one[rows], minlength=len(free[0]))
                 for one in self._amounts]  # fmt: skip
        return _Prefix(self._pool, free + np.array(given))

    def _asked(self, sums: _Prefix, rows: Ints) -> _AskedNodes:
        placed = [one for row in rows.tolist() if (one := self._placed[row]) is not None]
        return _AskedNodes(sums, self._node[rows], placed)

    def _grow(self) -> None:
        before = len(self._placed)
        more = max(_ROWS, before)
        self._free += range(before, before + more)
        self._placed += [None] * more
        self._job, self._node = (
            np.concatenate([one, np.zeros(more, dtype=np.int64)]) for one in (self._job, self._node)
        )
        self._amounts = np.hstack([self._amounts, np.zeros((3, more))])
        self._taken = np.concatenate([self._taken, np.zeros(more, dtype=bool)])


def _fewest(enough: Callable[[int], bool], low: int, high: int) -> int:
    """The fewest that are enough, where `low` are not and `high` are."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
