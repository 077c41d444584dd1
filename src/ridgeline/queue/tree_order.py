"""What `fair` and `drf` share: the poorest queue of the tree starts its next job that fits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.pool import Asked
from ridgeline.queue.share_tree import Amounts, ShareTree
from ridgeline.queue.waiting import Rank, WaitingJobs


class PoorestFirst(ABC):
    """Waiting jobs by queue, and what each queue has. Within a queue: by arrival, skipping."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.waiting = {name: WaitingJobs() for name in dict.fromkeys(state.queue)}
        self.tree = ShareTree(list(self.waiting), state.cluster.queues, self.capacity())

    @abstractmethod
    def capacity(self) -> Sequence[float]:
        """What there is of each resource."""

    @abstractmethod
    def amounts(self, job: int) -> Amounts:
        """What a job has of each while it runs."""

    def arrive(self, job: int) -> None:
        """Let a job wait in its queue."""
        state = self.state
        self.waiting[state.queue[job]].add(job, state.asked[job], (state.submit[job],))

    def finished(self, job: int) -> None:
        """Its queue has so much less."""
        self.tree.change(self.state.queue[job], self.amounts(job), -1)

    def changed(self, job: int) -> None:
        """Do nothing with a job whose end has moved, since no ends are kept."""
        del job

    def schedule(self) -> None:
        """Start a job of the poorest queue that has one that fits, until there is none."""
        while fitting := self._fitting():
            name = self.tree.poorest({name: rank for name, (rank, _) in fitting.items()})
            job = self.waiting[name].take(fitting[name][1])
            self.state.start(job)
            self.tree.change(name, self.amounts(job), 1)

    def next_moment(self) -> float:
        """Nothing is due by time alone."""
        return NEVER

    def _fitting(self) -> dict[str, tuple[Rank, Asked]]:
        """The rank and size of the first job that fits, of each queue that has one."""
        fits = self.state.pool.fits
        known: dict[Asked, bool] = {}
        found: dict[str, tuple[Rank, Asked]] = {}
        for name, jobs in self.waiting.items():
            first: tuple[Rank, Asked] | None = None
            for rank, size, _ in jobs.heads():
                if first is not None and rank > first[0]:
                    continue
                if size not in known:
                    known[size] = fits(size)
                if known[size]:
                    first = (rank, size)
            if first is not None:
                found[name] = first
        return found
