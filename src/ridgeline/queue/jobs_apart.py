"""Waiting jobs of a pool whose nodes are told apart, by whether nodes hold what they ask for."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.holding_rows import HoldingRows
from ridgeline.queue.piece_bits import marks_of
from ridgeline.queue.pool import Asked, GpuPool
from ridgeline.queue.waiting import FirstFitting, JobsBySize, Rank, WaitingJob
from ridgeline.queue.wants import Wish


class JobsApart:
    """Waiting jobs with a rank that does not change while they wait, by what they ask for.

    Args:
        pool: The nodes.
        ranked: What anybody will ask for and with which rank, the first in rank first. A job may
            come with another rank later.
    """

    def __init__(self, pool: DetailedPool, ranked: Sequence[tuple[Rank, Wish]]) -> None:
        self._rows = HoldingRows(pool, [wish for _, wish in ranked])
        self._waiting: dict[str, dict[int, list[WaitingJob]]] = {}
        """By queue and row, each a heap."""
        self._bits: dict[str, int] = {}
        """The same rows, by queue."""
        self._ranks = [rank for rank, _ in ranked]
        self._places: dict[str, NDArray[np.int64]] = {}
        """By queue and row: how many ranks are before that of the first job of the row."""

    def add(self, job: int, size: Wish, rank: Rank, queue: str = "") -> None:
        """Let a job wait in a queue."""
        row = self._rows.add(size)
        heap = self._waiting.setdefault(queue, {}).setdefault(row, [])
        heapq.heappush(heap, WaitingJob((*rank, job), size, job, queue))
        self._bits[queue] = self._bits.get(queue, 0) | 1 << row
        if queue not in self._places:
            self._places[queue] = np.zeros(len(self._rows), dtype=np.int64)
        self._note_place(row, heap[0])

    def first_fitting(self) -> dict[str, WaitingJob]:
        """The first in rank that fits now, of each queue that has one."""
        fitting: dict[str, WaitingJob] = {}
        fit = self._rows.fitting()
        for queue, bits in self._bits.items():
            if left := bits & fit:
                fitting[queue] = self._first_of(queue, left)
        return fitting

    def take(self, found: WaitingJob) -> int:
        """Remove a job that was found."""
        row = self._rows.row(found.size)
        heaps = self._waiting[found.queue]
        heapq.heappop(heaps[row])
        if heaps[row]:
            self._note_place(row, heaps[row][0])
        else:
            del heaps[row]
            self._bits[found.queue] ^= 1 << row
        self._rows.drop(found.size)
        return found.job

    def _note_place(self, row: int, head: WaitingJob) -> None:
        self._places[head.queue][row] = bisect_left(self._ranks, head.rank[:-1])

    def _first_of(self, queue: str, bits: int) -> WaitingJob:
        """The first in rank of the heads of some rows."""
        rows = np.flatnonzero(marks_of(bits, len(self._rows)))
        places = self._places[queue][rows]
        heads = self._waiting[queue]
        alike = rows[places == places.min()].tolist()
        return min((heads[row][0] for row in alike), key=lambda head: head.rank)


def jobs_waiting_on(pool: GpuPool, ranked: Sequence[tuple[Rank, Asked]]) -> FirstFitting:
    """Nobody yet; kept in the way that suits the pool.

    `ranked` is what anybody will ask for and with which rank, the first in rank first.
    """
    return JobsApart(pool, ranked) if isinstance(pool, DetailedPool) else JobsBySize(pool)
