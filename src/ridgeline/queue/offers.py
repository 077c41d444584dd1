"""Waiting jobs of several queues, of which each queue offers its first ones to be admitted."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator
from typing import Protocol

from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.holding_rows import HoldingRows
from ridgeline.queue.pool import Asked, GpuPool
from ridgeline.queue.waiting import Rank, WaitingJob, WaitingJobs
from ridgeline.queue.wants import Wish


class Offers(Protocol):
    """Waiting jobs by queue."""

    def add(self, job: int, size: Asked, rank: Rank, queue: str) -> None:
        """Let a job wait in a queue."""

    def heads(self, in_vain: Container[int]) -> Iterator[WaitingJob]:
        """The first of each size of all queues; of a strict queue only the very first.

        Those may be left out that do not fit and are in vain, or whose queue never interrupts.
        """

    def fits(self, size: Asked) -> bool:
        """Whether there is room for one that waits."""

    def take(self, offered: WaitingJob) -> None:
        """Remove a job that was offered."""


class OffersBySize:
    """Waiting jobs of which many ask alike."""

    def __init__(self, pool: GpuPool, strict: Container[str]) -> None:
        self._pool = pool
        self._strict = strict
        self._waiting: dict[str, WaitingJobs] = {}

    def add(self, job: int, size: Asked, rank: Rank, queue: str) -> None:
        """Let a job wait in a queue."""
        self._waiting.setdefault(queue, WaitingJobs()).add(job, size, rank)

    def heads(self, in_vain: Container[int]) -> Iterator[WaitingJob]:
        """The first of each size of all queues; of a strict queue only the very first."""
        del in_vain
        for queue, jobs in self._waiting.items():
            heads = list(jobs.heads())
            if heads and queue in self._strict:
                heads = [min(heads, key=lambda head: head[0])]
            for rank, size, job in heads:
                yield WaitingJob(rank, size, job, queue)

    def fits(self, size: Asked) -> bool:
        """Whether there is room for one that waits."""
        return self._pool.fits(size)

    def take(self, offered: WaitingJob) -> None:
        """Remove a job that was offered."""
        self._waiting[offered.queue].take(offered.size)


class OffersApart:
    """Waiting jobs of which hardly two ask alike, on nodes that are told apart."""

    def __init__(
        self,
        pool: DetailedPool,
        wishes: Iterable[Wish],
        strict: Container[str],
        interrupting: Iterable[str],
    ) -> None:
        self._rows = HoldingRows(pool, wishes)
        self._strict = strict
        self._interrupting = list(interrupting)
        self._of_row: dict[int, dict[str, list[WaitingJob]]] = {}
        """By row and queue, each a heap."""
        self._of_queue: dict[str, dict[int, list[WaitingJob]]] = {}
        """The same heaps by queue and row."""
        self._firsts: dict[str, list[WaitingJob]] = {}
        """Of strict queues, heaps; who was taken stays until it is met."""
        self._waits: set[int] = set()

    def add(self, job: int, size: Wish, rank: Rank, queue: str) -> None:
        """Let a job wait in a queue."""
        row = self._rows.add(size)
        found = WaitingJob((*rank, job), size, job, queue)
        heap = self._of_row.setdefault(row, {}).setdefault(queue, [])
        self._of_queue.setdefault(queue, {})[row] = heap
        heapq.heappush(heap, found)
        if queue in self._strict:
            self._waits.add(job)
            heapq.heappush(self._firsts.setdefault(queue, []), found)

    def heads(self, in_vain: Container[int]) -> Iterator[WaitingJob]:
        """Heads that fit; of queues that interrupt also those that are not in vain."""
        fitting = left = self._rows.fitting()
        while left:
            lowest = left & -left
            left ^= lowest
            row = lowest.bit_length() - 1
            for queue, heap in self._of_row[row].items():
                if queue not in self._strict:
                    yield heap[0]
        for queue in self._interrupting:
            if queue not in self._strict:
                for row, heap in self._of_queue.get(queue, {}).items():
                    if not fitting >> row & 1 and heap[0].job not in in_vain:
                        yield heap[0]
        for heap in self._firsts.values():
            while heap and heap[0].job not in self._waits:
                heapq.heappop(heap)
            if heap:
                yield heap[0]

    def fits(self, size: Wish) -> bool:
        """Whether there is room for one that waits."""
        return self._rows.has_room(size)

    def take(self, offered: WaitingJob) -> None:
        """Remove a job that was offered."""
        row = self._rows.row(offered.size)
        heap = self._of_row[row][offered.queue]
        heapq.heappop(heap)
        self._waits.discard(offered.job)
        if not heap:
            del self._of_row[row][offered.queue]
            del self._of_queue[offered.queue][row]
        if not self._of_row[row]:
            del self._of_row[row]
        self._rows.drop(offered.size)


def offers_on(
    pool: GpuPool,
    asked: Iterable[Asked],
    strict: Container[str],
    interrupting: Iterable[str],
) -> Offers:
    """Nobody yet; kept in the way that suits the pool. `asked` is all that anybody will ask for."""
    if isinstance(pool, DetailedPool):
        return OffersApart(pool, asked, strict, interrupting)
    return OffersBySize(pool, strict)
