"""Waiting jobs of which the first in rank that fits is asked for: what policies share that skip."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ridgeline.queue.pool import Asked, GpuPool
from ridgeline.queue.waiting import Rank, WaitingJobs


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
