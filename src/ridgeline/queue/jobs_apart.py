"""Waiting jobs of a pool whose nodes are told apart, by whether nodes hold what they ask for."""

from __future__ import annotations

import heapq

import numpy as np

from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.first_fitting import FirstFitting, JobsBySize, WaitingJob
from ridgeline.queue.holding_rows import HoldingRows
from ridgeline.queue.pool import GpuPool
from ridgeline.queue.waiting import Rank
from ridgeline.queue.wants import Wish


class JobsApart:
    """Waiting jobs with a rank that does not change while they wait, by what they ask for."""

    def __init__(self, pool: DetailedPool) -> None:
        self._rows = HoldingRows(pool)
        self._waiting: dict[int, dict[str, list[WaitingJob]]] = {}
        """By row and queue, each a heap."""

    def add(self, job: int, size: Wish, rank: Rank, queue: str = "") -> None:
        """Let a job wait in a queue."""
        row = self._rows.add(size)
        heap = self._waiting.setdefault(row, {}).setdefault(queue, [])
        heapq.heappush(heap, WaitingJob((*rank, job), size, job, queue))

    def first_fitting(self) -> dict[str, WaitingJob]:
        """The first in rank that fits now, of each queue that has one."""
        heads = [
            (heap[0].rank, row, queue)
            for row in np.flatnonzero(self._rows.may_fit()).tolist()
            for queue, heap in self._waiting[row].items()
        ]
        fitting: dict[str, WaitingJob] = {}
        for _, row, queue in sorted(heads):
            if queue not in fitting and self._rows.fits(row):
                fitting[queue] = self._waiting[row][queue][0]
        return fitting

    def take(self, found: WaitingJob) -> int:
        """Remove a job that was found."""
        row = self._rows.row(found.size)
        queues = self._waiting[row]
        heapq.heappop(queues[found.queue])
        if not queues[found.queue]:
            del queues[found.queue]
        self._rows.drop(found.size)
        if not queues:
            del self._waiting[row]
        return found.job


def jobs_waiting_on(pool: GpuPool) -> FirstFitting:
    """Nobody yet; kept in the way that suits the pool."""
    return JobsApart(pool) if isinstance(pool, DetailedPool) else JobsBySize(pool)
