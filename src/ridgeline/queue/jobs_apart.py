"""Waiting jobs of a pool whose nodes are told apart, as columns of what each asks.

Thousands of them may ask for thousands of things, so that asking the pool for each at every event
is out of the question. But whoever found no room finds none until a node gets something back, and
then only where that node holds a piece of it: so each such node is asked about all jobs at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.first_fitting import FirstFitting, JobsBySize, WaitingJob
from ridgeline.queue.node_room import PieceTable
from ridgeline.queue.pool import GpuPool
from ridgeline.queue.waiting import Rank
from ridgeline.queue.wants import NodePiece, Wish

_FIRST_ROWS = 64


class JobsApart:
    """Waiting jobs with a rank that does not change while they wait; one row each."""

    def __init__(self, pool: DetailedPool) -> None:
        self._pool = pool
        self._jobs: list[WaitingJob | None] = [None] * _FIRST_ROWS
        self._free_rows = list(range(_FIRST_ROWS))
        self._pieces = PieceTable(_FIRST_ROWS)
        self._ranks: list[NDArray[np.float64]] = []
        self._row_of: dict[int, int] = {}
        self._queues: dict[str, int] = {}
        self._queue = np.zeros(_FIRST_ROWS, dtype=np.int64)
        self._waits = np.zeros(_FIRST_ROWS, dtype=bool)
        self._sure = np.zeros(_FIRST_ROWS, dtype=bool)
        """Jobs of one piece: they fit where a node holds it."""
        self._new = np.zeros(_FIRST_ROWS, dtype=bool)
        """Jobs that were not yet refused."""
        self._asked = np.zeros(_FIRST_ROWS, dtype=np.int64)
        """How much nodes had got back when a job was last refused."""
        self._singles = _SingleGpus(pool, self._pieces)
        self._seen = 0
        """How much of what nodes got back has been looked at by all who were refused."""

    def add(self, job: int, size: Wish, rank: Rank, queue: str = "") -> None:
        """Let a job wait in a queue."""
        if not self._free_rows:
            self._grow()
        row = self._free_rows.pop()
        ranked = (*rank, job)
        while len(self._ranks) < len(ranked):
            self._ranks.append(np.zeros(len(self._jobs)))
        for column, value in zip(self._ranks, ranked, strict=True):
            column[row] = value
        self._jobs[row] = WaitingJob(ranked, size, job, queue)
        self._queue[row] = self._queues.setdefault(queue, len(self._queues))
        self._pieces.note(row, _weakest(size))
        self._waits[row] = self._new[row] = True
        self._sure[row] = _is_one_piece(size)
        self._row_of[job] = row

    def first_fitting(self) -> dict[str, WaitingJob]:
        """The first in rank that fits now, of each queue that has one."""
        held = self._held_by_changed()
        sure = self._sure & held
        gained = len(self._pool.gained)
        rows = np.flatnonzero(self._waits & (sure | self._new | (held & (self._asked < gained))))
        rows = self._singles.without_lacking(rows)
        fitting: dict[str, WaitingJob] = {}
        while len(rows):
            row = self._first(rows)
            found = self._jobs[row]
            assert found is not None, "a row that waits has its job"
            if sure[row] or self._fits(row, found.size):
                fitting[found.queue] = found
                rows = rows[self._queue[rows] != self._queue[row]]
            else:
                rows = rows[rows != row]
        if not fitting:
            self._seen = len(self._pool.gained)
        return fitting

    def take(self, found: WaitingJob) -> int:
        """Remove a job that was found."""
        row = self._row_of.pop(found.job)
        self._waits[row] = self._new[row] = False
        self._singles.forget(row)
        self._jobs[row] = None
        self._free_rows.append(row)
        return found.job

    def _held_by_changed(self) -> NDArray[np.bool_]:
        """Which rows ask for a piece that a node holds which got something back."""
        pool = self._pool
        held = np.zeros(len(self._jobs), dtype=bool)
        for node in set(pool.gained[self._seen :]):
            held |= self._pieces.held_by(pool.rooms[node])
        return held

    def _fits(self, row: int, size: Wish) -> bool:
        """Ask the pool, and note a refusal."""
        if self._pool.fits(size):
            return True
        self._new[row] = False
        self._asked[row] = len(self._pool.gained)
        if size.single is not None and not self._sure[row]:
            self._singles.watch(row, size)
        return False

    def _first(self, rows: NDArray[np.int64]) -> int:
        for column in self._ranks:
            if len(rows) == 1:
                break
            values = column[rows]
            rows = rows[values == values.min()]
        return int(rows[0])

    def _grow(self) -> None:
        more = len(self._jobs)
        self._free_rows += range(more, 2 * more)
        self._jobs += [None] * more
        self._waits, self._sure, self._new, self._asked, self._queue = (
            np.concatenate([one, np.zeros_like(one)])
            for one in (self._waits, self._sure, self._new, self._asked, self._queue)
        )
        self._ranks = [np.concatenate([one, np.zeros(more)]) for one in self._ranks]
        self._pieces.grow()


class _SingleGpus:
    """How many single GPUs all nodes together have for jobs that take them anywhere.

    Counted in full when such a job is refused, and afterwards only on nodes that change.
    """

    def __init__(self, pool: DetailedPool, pieces: PieceTable) -> None:
        self._pool = pool
        self._pieces = pieces
        self._slot_of: dict[int, int] = {}
        self._free_slots: list[int] = []
        self._rows = np.empty(0, dtype=np.int64)
        """The row of each slot; -1: nobody is in it."""
        self._there = np.empty((0, len(pool.rooms)), dtype=np.int16)
        self._total = np.empty(0, dtype=np.int64)
        self._wanted = np.empty(0, dtype=np.int64)
        self._counted = 0
        """How many of the pool's changes have been counted."""

    def watch(self, row: int, wish: Wish) -> None:
        """Count for a job that was refused."""
        if row in self._slot_of:
            return
        assert wish.single is not None, "others do not take GPUs anywhere"
        self._count()
        if not self._free_slots:
            self._grow()
        slot = self._slot_of[row] = self._free_slots.pop()
        self._rows[slot] = row
        self._there[slot] = self._pool.counts(wish.single, single=True)
        self._total[slot] = int(self._there[slot].sum())
        self._wanted[slot] = wish.gpus - _rounded_up(wish)

    def forget(self, row: int) -> None:
        """Count no longer for a job."""
        slot = self._slot_of.pop(row, None)
        if slot is not None:
            self._rows[slot] = -1
            self._free_slots.append(slot)

    def without_lacking(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows without those for which there are too few GPUs."""
        if not self._slot_of:
            return rows
        self._count()
        lacking = self._rows[(self._rows >= 0) & (self._total < self._wanted)]
        return rows[~np.isin(rows, lacking)]

    def _count(self) -> None:
        slots = np.flatnonzero(self._rows >= 0)
        rows = self._rows[slots]
        for node in set(self._pool.changes[self._counted :]) if len(slots) else ():
            times = self._pieces.times_on(self._pool.rooms[node], rows)
            self._total[slots] += times - self._there[slots, node]
            self._there[slots, node] = times
        self._counted = len(self._pool.changes)

    def _grow(self) -> None:
        more = max(_FIRST_ROWS, len(self._rows))
        self._free_slots += range(len(self._rows), len(self._rows) + more)
        self._rows = np.concatenate([self._rows, np.full(more, -1)])
        self._total, self._wanted = (
            np.concatenate([one, np.zeros(more, dtype=np.int64)])
            for one in (self._total, self._wanted)
        )
        self._there = np.concatenate(
            [self._there, np.zeros((more, self._there.shape[1]), dtype=np.int16)]
        )


def _rounded_up(wish: Wish) -> int:
    """GPUs that a job may lack one by one and yet fit in whole pieces.

    Cores and memory of a piece are rounded up once, and GPU by GPU each time.
    """
    single = wish.single
    assert single is not None, "others do not take GPUs anywhere"
    exact = all(
        (single.cpu_milli * piece.gpus, single.memory_bytes * piece.gpus)
        == (piece.cpu_milli, piece.memory_bytes)
        for piece, _ in wish.pieces()
    )
    return 0 if exact else wish.gpus


def _is_one_piece(wish: Wish) -> bool:
    """Whether a job fits wherever one node holds what it asks for, and nowhere else."""
    pieces = wish.pieces()
    alone = len(pieces) == 1 and pieces[0][1] == 1
    return alone and (wish.single is None or wish.gpus <= 1)


def _weakest(wish: Wish) -> NodePiece:
    """The piece that a node must hold for it to be of any use to a job."""
    found = wish.single or wish.rest or wish.full
    return found if found is not None else NodePiece(gpus=0)


def jobs_waiting_on(pool: GpuPool) -> FirstFitting:
    """Nobody yet; kept in the way that suits the pool."""
    return JobsApart(pool) if isinstance(pool, DetailedPool) else JobsBySize(pool)
