"""Jobs that wait, as one heap per size, so that the first one that fits is found in no time.

A size is whatever jobs ask of the pool: those that ask alike fit alike. So the first job in some
order that fits is the first among the heads of the sizes that fit, and taking it again and again is
the same as a scan of all waiting jobs in that order: what was passed over did not fit, and GPUs
only become fewer.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

from ridgeline.queue.pool import Asked, GpuPool

Rank: TypeAlias = tuple[Any, ...]
"""What waiting jobs are ordered by; smaller is earlier."""


class WaitingJobs:
    """Waiting jobs with a rank that does not change while they wait."""

    def __init__(self) -> None:
        self._heaps: dict[Asked, list[tuple[Rank, int]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, job: int, size: Asked, rank: Rank) -> None:
        """Let a job wait."""
        heapq.heappush(self._heaps.setdefault(size, []), ((*rank, job), job))
        self._count += 1

    def heads(self) -> Iterator[tuple[Rank, Asked, int]]:
        """The first job of each size: rank, size, job."""
        for size, heap in self._heaps.items():
            yield heap[0][0], size, heap[0][1]

    def head(self, size: Asked) -> tuple[Rank, int] | None:
        """The first job of a size, with its rank; None: nobody waits who asks for that."""
        heap = self._heaps.get(size)
        return heap[0] if heap else None

    def take(self, size: Asked) -> int:
        """Remove the first job of a size."""
        self._count -= 1
        heap = self._heaps[size]
        _, job = heapq.heappop(heap)
        if not heap:
            del self._heaps[size]
        return job


class WaitingJob(NamedTuple):
    """A job that waits in a queue, what it asks for, and its rank."""

    rank: Rank
    size: Asked
    job: int
    queue: str


class FirstFitting(Protocol):
    """Waiting jobs with a rank that does not change while they wait, in queues."""

    def add(self, job: int, size: Asked, rank: Rank, queue: str = "") -> None:
        """Let a job wait in a queue."""

    def first_fitting(self) -> dict[str, WaitingJob]:
        """The first in rank that fits now, of each queue that has one."""

    def take(self, found: WaitingJob) -> int:
        """Remove a job that was found."""


class JobsBySize:
    """Waiting jobs of which many ask alike: only the first of each size is asked for."""

    def __init__(self, pool: GpuPool) -> None:
        self._pool = pool
        self._waiting: dict[str, WaitingJobs] = {}

    def add(self, job: int, size: Asked, rank: Rank, queue: str = "") -> None:
        """Let a job wait in a queue."""
        self._waiting.setdefault(queue, WaitingJobs()).add(job, size, rank)

    def first_fitting(self) -> dict[str, WaitingJob]:
        """The first in rank that fits now, of each queue that has one."""
        fits: dict[Asked, bool] = {}
        fitting: dict[str, WaitingJob] = {}
        for queue, jobs in self._waiting.items():
            first: WaitingJob | None = None
            for rank, size, job in jobs.heads():
                if first is not None and rank > first.rank:
                    continue
                if size not in fits:
                    fits[size] = self._pool.fits(size)
                if fits[size]:
                    first = WaitingJob(rank, size, job, queue)
            if first is not None:
                fitting[queue] = first
        return fitting

    def take(self, found: WaitingJob) -> int:
        """Remove a job that was found."""
        return self._waiting[found.queue].take(found.size)
