"""How many nodes hold what each waiting job asks for, counted on while nodes change.

Thousands of jobs may wait that ask for thousands of things, so that asking the pool for each at
every event is out of the question. Instead each thing has a row; when a node changes, it is asked
about all rows at once, and where its answer is another one, the row's count moves by one. Jobs that
ask alike share a row.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.node_room import PieceTable
from ridgeline.queue.wants import NodePiece, Wish

_FIRST_ROWS = 64
_Any = TypeVar("_Any", bound=np.generic)


class HoldingRows:
    """What waiting jobs ask for, a row each, and where there is room for it.

    Whole nodes and a rest are two rows, of which each must have nodes enough.
    """

    def __init__(self, pool: DetailedPool) -> None:
        self._pool = pool
        self._row_of: dict[Wish, tuple[int, ...]] = {}
        self._users: dict[Wish, int] = {}
        self._wishes: list[Wish | None] = []
        """Of each row; None: it is free, or a second one."""
        self._free: list[int] = []
        self._pieces = PieceTable(0)
        self._held = np.zeros((len(pool.rooms), 0), dtype=bool)
        self._count = np.zeros(0, dtype=np.int32)
        self._need = np.zeros(0, dtype=np.int32)
        self._mate = np.zeros(0, dtype=np.int64)
        self._leads = np.zeros(0, dtype=bool)
        """Rows that somebody uses, the first of two."""
        self._exact = np.zeros(0, dtype=bool)
        """Rows of which the counts alone tell whether there is room."""
        self._open = np.zeros(0, dtype=bool)
        """Rows that were not refused since a node has changed that holds what they ask for."""
        self._singles = _SingleGpus(pool)
        self._seen = 0
        """How many of the pool's changes have been counted."""

    def add(self, wish: Wish) -> int:
        """Count for one job more that asks for this, and say which row it has."""
        self._users[wish] = self._users.get(wish, 0) + 1
        if wish in self._row_of:
            return self._row_of[wish][0]
        self._sync()
        asked = wish.pieces() or [(NodePiece(gpus=0), 0)]
        while len(self._free) < len(asked):
            self._grow()
        rows = [self._free.pop() for _ in asked]
        needed = 0
        for row, (piece, times) in zip(rows, asked, strict=True):
            needed += times
            self._note(row, piece, needed)
        self._mate[rows] = rows[::-1]
        self._exact[rows[0]] = wish.level == "node" or not wish.required
        self._wishes[rows[0]] = wish
        self._leads[rows[0]] = True
        self._row_of[wish] = tuple(rows)
        if _scatters(wish):
            self._singles.watch(rows[0], wish)
        return rows[0]

    def drop(self, wish: Wish) -> None:
        """Count for one job less."""
        self._users[wish] -= 1
        if self._users[wish]:
            return
        del self._users[wish]
        rows = self._row_of.pop(wish)
        self._singles.forget(rows[0])
        self._wishes[rows[0]] = None
        self._leads[rows[0]] = False
        self._need[list(rows)] = _NEVER
        self._free += rows

    def may_fit(self) -> NDArray[np.bool_]:
        """Which rows there may be room for; `fits` says whether there is."""
        self._sync()
        enough = self._count >= self._need
        enough &= enough[self._mate]
        enough &= self._leads
        self._singles.note_enough(enough)
        enough &= self._exact | self._open | self._open[self._mate]
        return np.asarray(enough)

    def fits(self, row: int) -> bool:
        """Whether there is room for one that may fit, now that nothing has changed."""
        if self._exact[row]:
            return True
        if self._pool.fits(self.wish(row)):
            return True
        self._open[row] = self._open[self._mate[row]] = False
        return False

    def row(self, wish: Wish) -> int:
        """The row of what somebody asks for."""
        return self._row_of[wish][0]

    def wish(self, row: int) -> Wish:
        """What is asked for in a row."""
        found = self._wishes[row]
        assert found is not None, "a row that is counted has its wish"
        return found

    def _note(self, row: int, piece: NodePiece, needed: int) -> None:
        held = self._pool.counts(piece) > 0
        self._pieces.note(row, piece)
        self._held[:, row] = held
        self._count[row] = int(held.sum())
        self._need[row] = needed
        self._open[row] = True

    def _sync(self) -> None:
        pool = self._pool
        if self._seen == len(pool.changes):
            return
        changed = dict.fromkeys(pool.changes[self._seen :])
        self._seen = len(pool.changes)
        if not self._held.shape[1]:
            return
        for node in changed:
            held = self._pieces.held_by(pool.rooms[node])
            self._count += held
            self._count -= self._held[node]
            self._held[node] = held
            self._open |= held
        self._singles.sync(changed)

    def _grow(self) -> None:
        before = len(self._wishes)
        more = max(_FIRST_ROWS, before)
        self._free += range(before + more - 1, before - 1, -1)
        self._wishes += [None] * more
        self._pieces.grow(more)
        self._held = np.hstack([self._held, np.zeros((len(self._held), more), dtype=bool)])
        self._count = _longer(self._count, more)
        self._need = _longer(self._need, more, _NEVER)
        self._mate = np.concatenate([self._mate, np.arange(before, before + more)])
        self._exact, self._leads = _longer(self._exact, more), _longer(self._leads, more)
        self._open = _longer(self._open, more)


class _SingleGpus:
    """How many single GPUs all nodes together have for jobs that take them anywhere."""

    def __init__(self, pool: DetailedPool) -> None:
        self._pool = pool
        self._slot_of: dict[int, int] = {}
        self._free: list[int] = []
        self._pieces = PieceTable(0)
        self._row = np.zeros(0, dtype=np.int64)
        """The row of each slot; -1: nobody is in it."""
        self._there = np.zeros((len(pool.rooms), 0), dtype=np.int32)
        self._total = np.zeros(0, dtype=np.int64)
        self._wanted = np.zeros(0, dtype=np.int64)

    def watch(self, row: int, wish: Wish) -> None:
        """Count for a row."""
        assert wish.single is not None, "others do not take GPUs anywhere"
        if not self._free:
            self._grow()
        slot = self._slot_of[row] = self._free.pop()
        self._row[slot] = row
        self._pieces.note(slot, wish.single)
        self._there[:, slot] = self._pool.counts(wish.single, single=True)
        self._total[slot] = int(self._there[:, slot].sum())
        self._wanted[slot] = wish.gpus

    def forget(self, row: int) -> None:
        """Count no longer for a row."""
        slot = self._slot_of.pop(row, None)
        if slot is not None:
            self._row[slot] = -1
            self._free.append(slot)

    def note_enough(self, enough: NDArray[np.bool_]) -> None:
        """Mark the rows for which there are enough."""
        slots = np.flatnonzero((self._row >= 0) & (self._total >= self._wanted))
        enough[self._row[slots]] = True

    def sync(self, changed: dict[int, None]) -> None:
        """Count again on nodes that have changed."""
        if not self._slot_of:
            # Whoever comes later is counted in full; what stands there is nobody's.
            return
        every = np.arange(len(self._row))
        for node in changed:
            times = self._pieces.times_on(self._pool.rooms[node], every)
            self._total += times - self._there[node]
            self._there[node] = times

    def _grow(self) -> None:
        before = len(self._row)
        more = max(_FIRST_ROWS, before)
        self._free += range(before, before + more)
        self._pieces.grow(more)
        self._row = _longer(self._row, more, -1)
        self._total, self._wanted = _longer(self._total, more), _longer(self._wanted, more)
        self._there = np.hstack(
            [self._there, np.zeros((len(self._there), more), dtype=self._there.dtype)]
        )


_NEVER = 2**30
"""More nodes than there are: a row that nobody uses."""


def _longer(numbers: NDArray[_Any], more: int, filled: int = 0) -> NDArray[_Any]:
    return np.concatenate([numbers, np.full(more, filled, dtype=numbers.dtype)])


def _scatters(wish: Wish) -> bool:
    """Whether GPUs that lie apart would do where one node or whole ones would not."""
    return wish.level == "node" and wish.single is not None and wish.gpus > 1
