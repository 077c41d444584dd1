"""Waiting jobs of a pool whose nodes are told apart, by whether nodes hold what they ask for."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.first_fitting import FirstFitting, JobsBySize, WaitingJob
from ridgeline.queue.holding_rows import HoldingRows
from ridgeline.queue.pool import Asked, GpuPool
from ridgeline.queue.waiting import Rank
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
        firsts: dict[Wish, Rank] = {}
        for rank, wish in ranked:
            firsts.setdefault(wish, rank)
        self._first = list(firsts.values())
        """The first rank of each row, in order."""
        self._waiting: dict[str, dict[int, list[WaitingJob]]] = {}
        """By queue and row, each a heap."""
        self._bits: dict[str, int] = {}
        """The same rows, by queue."""
        self._early = 0
        """Rows of jobs that came with a rank before the first of their row."""

    def add(self, job: int, size: Wish, rank: Rank, queue: str = "") -> None:
        """Let a job wait in a queue."""
        row = self._rows.add(size)
        heap = self._waiting.setdefault(queue, {}).setdefault(row, [])
        heapq.heappush(heap, WaitingJob((*rank, job), size, job, queue))
        self._bits[queue] = self._bits.get(queue, 0) | 1 << row
        if rank < self._first[row]:
            self._early |= 1 << row

    def first_fitting(self) -> dict[str, WaitingJob]:
        """The first in rank that fits now, of each queue that has one."""
        fitting: dict[str, WaitingJob] = {}
        fit = self._rows.fitting()
        for queue, bits in self._bits.items():
            if left := bits & fit:
                found = self._first_of(queue, left & self._early, None)
                found = self._first_of(queue, left & ~self._early, found)
                if found is not None:
                    fitting[queue] = found
        return fitting

    def take(self, found: WaitingJob) -> int:
        """Remove a job that was found."""
        row = self._rows.row(found.size)
        heaps = self._waiting[found.queue]
        heapq.heappop(heaps[row])
        if not heaps[row]:
            del heaps[row]
            self._bits[found.queue] ^= 1 << row
        self._rows.drop(found.size)
        return found.job

    def _first_of(self, queue: str, rows: int, found: WaitingJob | None) -> WaitingJob | None:
        """The first in rank of the heads of some rows, if it is before the one that was found."""
        while rows:
            lowest = rows & -rows
            rows ^= lowest
            row = lowest.bit_length() - 1
            if found is not None and found.rank < self._first[row] and not lowest & self._early:
                break  # the later rows are no earlier
            head = self._waiting[queue][row][0]
            if found is None or head.rank < found.rank:
                found = head
        return found


def jobs_waiting_on(pool: GpuPool, ranked: Sequence[tuple[Rank, Asked]]) -> FirstFitting:
    """Nobody yet; kept in the way that suits the pool.

    `ranked` is what anybody will ask for and with which rank, the first in rank first.
    """
    return JobsApart(pool, ranked) if isinstance(pool, DetailedPool) else JobsBySize(pool)
