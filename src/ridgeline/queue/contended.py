"""Whom a job must interrupt on nodes that are told apart, of those that it outranks.

What the outranked hold is kept as columns, a row for each piece on a node, so that what nodes would
have without the first so many of them is a sum over rows. Sums tell everything but where GPUs are
shared or split: there the few nodes that matter are asked themselves.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.detailed_pool import (
    DetailedHeld,
    DetailedPool,
    Placed,
    has_room,
    retake,
)
from ridgeline.queue.node_room import NodeRoom
from ridgeline.queue.nodes_without import AskedNodes, NodesWithout, lacked_nodes
from ridgeline.queue.room_tally import RoomTally
from ridgeline.queue.wants import NodePiece, Wish

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_KEYS = 3
"""Numbers by which running jobs are ordered, at most."""
_ROWS = 256
_LOOKED_AT = 6
"""Jobs that are looked at one by one before it is summed up whether all of them are enough."""


@dataclass(frozen=True, slots=True)
class _Enough:
    """So many jobs have given back enough for a piece."""

    count: int
    having: dict[int, NodeRoom]
    """The nodes that hold the piece now."""
    gone: dict[int, list[int]]
    """The jobs that have given back something of a node, in their order."""


class ContendedNodes:
    """Running jobs by node, in the order in which they are interrupted."""

    def __init__(self, pool: DetailedPool) -> None:
        self._pool = pool
        self._key_of: dict[int, tuple[float, ...]] = {}
        self._ordered: list[tuple[float, ...]] = []
        """Those numbers and the job, the first to be interrupted first."""
        self._held: dict[int, DetailedHeld] = {}
        self._rows_of: dict[int, list[int]] = {}
        self._free: list[int] = []
        self._job = np.zeros(0, dtype=np.int64)
        self._job_of: dict[int, int] = {}
        """The job of each row, as a Python integer."""
        self._node = np.zeros(0, dtype=np.int64)
        self._amounts = np.zeros((3, 0))
        self._row_first = np.zeros(0)
        """The first number of the job of a row; infinite: nobody has the row."""
        self._holds: list[tuple[float, float, float]] = []
        self._first_of: list[float] = []
        """Amounts and first numbers, as numbers of Python's."""
        self._placed: list[Placed | None] = []
        self._on_node: dict[int, dict[int, None]] = {}
        """Rows by node."""
        self._reach: dict[int, tuple[Floats, Floats]] = {}
        """What nodes have, free or held by the first of its jobs, and the numbers of these jobs."""
        self._in_order: list[int] = []
        """Rows of the first jobs in order, as far as that was asked since it last changed."""
        self._first_rows = np.zeros(0, dtype=np.int64)
        """The same rows, as far as an array was needed."""
        self._row_ends: list[int] = []
        """How many of these rows are of the first job, the first two, and so on."""
        self.lacked: Ints | None = None
        """How many nodes the job that last asked lacks in each domain; None: that is not known."""
        self._near = 1
        """How many had to give back what they held when that was last looked for."""

    def run(self, job: int, held: DetailedHeld) -> None:
        """Count what a job holds from now on."""
        self._held[job] = held
        rows = self._rows_of[job] = []
        for node, placed in held:
            if not self._free:
                self._grow()
            row = self._free.pop()
            rows.append(row)
            self._job[row], self._node[row] = job, node
            self._job_of[row] = job
            piece = placed.piece
            holds = self._holds[row] = placed.gpus, piece.cpu_milli, piece.memory_bytes
            self._amounts[:, row] = holds
            self._placed[row] = placed
            self._on_node.setdefault(node, {})[row] = None

    def order(self, job: int, numbers: Sequence[float]) -> None:
        """Set by what a running job is ordered; the smallest is interrupted first."""
        self._forget(job)
        key = self._key_of[job] = (*numbers, *(0.0,) * (_KEYS - len(numbers)), job)
        for row in self._rows_of[job]:
            self._row_first[row] = self._first_of[row] = key[0]
        insort(self._ordered, key)
        self._row_ends.clear()
        for node, _ in self._held[job]:
            self._reach.pop(node, None)

    def leave(self, job: int) -> DetailedHeld:
        """Count what a job held no longer."""
        for row in self._rows_of.pop(job):
            node = int(self._node[row])
            self._row_first[row] = np.inf
            self._placed[row] = None
            del self._on_node[node][row]
            self._reach.pop(node, None)
            self._free.append(row)
        self._forget(job)
        return self._held.pop(job)

    def lowest(self) -> float:
        """The first number of the job that is interrupted first; infinite: none runs."""
        return self._ordered[0][0] if self._ordered else np.inf

    def amounts(self, node: int, below: float) -> tuple[float, float, float]:
        """What a node has, free or held by those of its jobs that are ordered below a number."""
        gpus, cpu_milli, memory_bytes = self._pool.free_amounts()[:, node].tolist()
        for row in self._on_node.get(node, ()):
            if self._first_of[row] < below:
                held = self._holds[row]
                gpus, cpu_milli = gpus + held[0], cpu_milli + held[1]
                memory_bytes += held[2]
        return gpus, cpu_milli, memory_bytes

    def within_reach(self, node: int) -> tuple[Floats, Floats]:
        """What a node has, free or held by the first of its jobs in order: none of them, one, two.

        Also the first numbers of these jobs.
        """
        found = self._reach.get(node)
        if found is None:
            rows = list(self._on_node.get(node, ()))
            first = self._row_first[rows]
            order = first.argsort()
            given = np.empty((3, len(rows) + 1))
            given[:, 0] = self._pool.free_amounts()[:, node]
            given[:, 1:] = self._amounts[:, rows][:, order]
            found = self._reach[node] = given.cumsum(axis=1), first[order]
        return found

    def forget_reach(self) -> None:
        """Add up again what nodes have: some of them failed, or came back."""
        self._reach.clear()

    def victims(self, wish: Wish, below: float, among: Iterable[int] | None = None) -> list[int]:
        """The jobs ordered below a number that must go for another to fit; empty: no number does.

        The first in order go, as many as are needed; then whoever is not needed stays after all,
        the last in order first. Where it is known that no other nodes can be enough for it,
        `among` are those that could.
        """
        self.lacked = None
        count = bisect_left(self._ordered, (below,))
        if not count:
            return []
        piece = wish.one_piece
        if piece is None:
            return self._for_many(wish, count, below)
        keys: Iterable[tuple[float, ...]] = islice(self._ordered, count)
        if among is not None:
            on_node, key_of = self._on_node, self._key_of
            there = {key_of[self._job_of[row]] for node in among for row in on_node.get(node, ())}
            keys = sorted(key for key in there if key[0] < below)
        found = self._enough_for_one(piece, keys, below if among is None else None)
        return self._still_needed(piece, found.having, found.gone) if found else []

    def fewest(self, wish: Wish) -> int | None:
        """How many of the first in order must give back what they hold for a job to fit.

        None: all of them are not enough.
        """
        piece = wish.one_piece
        if piece is None:
            return self._fewest_for_many(wish, len(self._ordered))
        found = self._enough_for_one(piece, self._ordered, np.inf)
        return found.count if found else None

    def _enough_for_one(
        self, piece: NodePiece, keys: Iterable[tuple[float, ...]], below: float | None
    ) -> _Enough | None:
        """Let one job after the other give back what it holds until a node holds the piece.

        Where they are all jobs ordered `below` a number, what they hold together is summed up
        after the first few.
        """
        rooms: dict[int, NodeRoom] = {}
        gone: dict[int, list[int]] = {}
        able: list[bool] | None = None
        for count, key in enumerate(keys, 1):
            if count == _LOOKED_AT and below is not None:
                able = (self._all_below(below).counts(piece) > 0).tolist()
                if True not in able:
                    return None
            job = key[-1]
            having = {}
            for node, placed in self._held[job]:  # type: ignore[index]
                if able is not None and not able[node]:
                    continue
                room = rooms.get(node)
                if room is None:
                    room = rooms[node] = self._pool.rooms[node].copy()
                room.give(placed.piece, (placed.gpu, placed.slots))
                gone.setdefault(node, []).append(job)  # type: ignore[arg-type]
                having[node] = room
            having = {node: room for node, room in having.items() if room.holds(piece)}
            if having:
                return _Enough(count, having, gone)
        return None

    def _still_needed(
        self, piece: NodePiece, having: dict[int, NodeRoom], gone: dict[int, list[int]]
    ) -> list[int]:
        """Spare whom no node needs of which one must go on holding a piece, the last first."""
        there = sorted({self._key_of[job] for node in having for job in gone[node]})
        needed = []
        for job in (int(key[-1]) for key in reversed(there)):
            here = [(node, placed) for node, placed in self._held[job] if node in having]
            for node, placed in here:
                retake(having[node], placed)
            if not any(room.holds(piece) for room in having.values()):
                for node, placed in here:
                    having[node].give(placed.piece, (placed.gpu, placed.slots))
                needed.append(job)
        return needed[::-1]

    def _for_many(self, wish: Wish, most: int, below: float) -> list[int]:
        all_gone = self._all_below(below)
        if not has_room(wish, all_gone):
            self.lacked = lacked_nodes(wish, all_gone)
            return []
        count = self._fewest_for_many(wish, most)
        if count is None:
            return []
        given = self._rows(count)
        return self._needed(wish, given, self._asked(self._without(given), given))

    def _fewest_for_many(self, wish: Wish, most: int) -> int | None:
        """Find how many must give back what they hold, first by sums, then by asking nodes."""
        count = self._fewest(wish, most, 0, asked=False)
        if count is not None and not self._enough(wish, count, asked=True):
            count = self._fewest(wish, most, count, asked=True)
        self._near = self._near if count is None else count
        return count

    def _fewest(self, wish: Wish, most: int, low: int, *, asked: bool) -> int | None:
        """The fewest that are enough, where `low` are not; None: `most` of them are not.

        Looked for from where it was last, in strides that grow and then halve.
        """
        high, stride = most + 1, 1
        at = min(max(low + 1, self._near), most)
        while high - low > 1:
            if self._enough(wish, at, asked=asked):
                high = at
                at = max((low + high) // 2, high - stride)
            elif at == most:
                return None
            else:
                low = at
                at = min((low + high) // 2 if high <= most else most, low + stride)
            stride *= 2
        return high if high <= most else None

    def _enough(self, wish: Wish, count: int, *, asked: bool) -> bool:
        given = self._rows(count)
        sums = self._without(given)
        return has_room(wish, self._asked(sums, given) if asked else sums)

    def _rows(self, count: int) -> Ints:
        """The rows of the first jobs in order."""
        rows_of, ends = self._rows_of, self._row_ends
        if not ends:
            self._in_order.clear()
            self._first_rows = self._first_rows[:0]
        for key in self._ordered[len(ends) : count]:
            self._in_order += rows_of[key[-1]]  # type: ignore[index]
            ends.append(len(self._in_order))
        end = ends[count - 1] if count else 0
        if end > len(self._first_rows):
            self._first_rows = np.array(self._in_order, dtype=np.int64)
        return self._first_rows[:end]

    def _all_below(self, below: float) -> NodesWithout:
        """Nodes without all jobs that are ordered below a number."""
        return self._without(np.flatnonzero(self._row_first < below))

    def _needed(self, wish: Wish, given: Ints, nodes: AskedNodes) -> list[int]:
        """The jobs that must go indeed; all of them are on nodes that would hold pieces."""
        asked = [nodes.counts(piece) > 0 for piece, _ in wish.pieces()]
        if wish.single is not None:
            asked.append(nodes.counts(wish.single, single=True) > 0)
        holding = np.logical_or.reduce(asked)
        there = dict.fromkeys(self._job[given[holding[self._node[given]]]].tolist())
        room, needed = RoomTally(self._pool, wish), []
        for job in there:
            room.change(self._held[job], 1)
        for job in reversed(there):
            room.change(self._held[job], -1)
            if not room.fits():
                room.change(self._held[job], 1)
                needed.append(job)
        return needed[::-1]

    def _forget(self, job: int) -> None:
        key = self._key_of.pop(job, None)
        if key is not None:
            del self._ordered[bisect_left(self._ordered, key)]
            self._row_ends.clear()

    def _without(self, rows: Ints) -> NodesWithout:
        node, free = self._node[rows], self._pool.free_amounts()
        given = [np.bincount(node, weights=one[rows], minlength=len(free[0]))
                 for one in self._amounts]  # fmt: skip
        return NodesWithout(self._pool, free + np.array(given))

    def _asked(self, sums: NodesWithout, rows: Ints) -> AskedNodes:
        return AskedNodes(sums, rows, self._node[rows], self._placed)

    def _grow(self) -> None:
        before = len(self._placed)
        more = max(_ROWS, before)
        self._free += range(before, before + more)
        self._placed += [None] * more
        self._holds += [(0.0, 0.0, 0.0)] * more
        self._first_of += [np.inf] * more
        self._job, self._node = (
            np.concatenate([one, np.zeros(more, dtype=np.int64)]) for one in (self._job, self._node)
        )
        self._amounts = np.hstack([self._amounts, np.zeros((3, more))])
        self._row_first = np.concatenate([self._row_first, np.full(more, np.inf)])
