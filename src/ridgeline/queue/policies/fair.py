"""Weighted fair shares, by which the queue that has least for its weight starts next.

Max-min fairness over GPUs, without interruptions; for one resource it is what dominant resource
fairness comes to (Ghodsi et al., NSDI 2011). Within a queue: order of arrival, skipping what does
not fit.
"""

from __future__ import annotations

from ridgeline.queue.cluster import QueueShare
from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.waiting import WaitingJobs

CARD = PolicyCard(
    title="the queue with the least GPUs for its weight first", source="Ghodsi et al., NSDI 2011"
)


class WeightedFairShares:
    """Waiting jobs by queue, and what each queue has."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.waiting = {name: WaitingJobs() for name in dict.fromkeys(state.queue)}
        self.used = dict.fromkeys(self.waiting, 0)
        shares = state.cluster.queues
        self.weight = {name: shares.get(name, QueueShare()).weight for name in self.waiting}

    def arrive(self, job: int) -> None:
        """Let a job wait in its queue."""
        state = self.state
        self.waiting[state.queue[job]].add(job, state.size[job], (state.submit[job],))

    def finished(self, job: int) -> None:
        """Its queue has so many GPUs less."""
        self.used[self.state.queue[job]] -= self.state.size[job]

    def schedule(self) -> None:
        """Start a job of the poorest queue that has one that fits, until there is none."""
        while chosen := self._next():
            _, _, size, name = chosen
            job = self.waiting[name].take(size)
            self.state.start(job)
            self.used[name] += size

    def next_moment(self) -> float:
        """Nothing is due by time alone."""
        return NEVER

    def _next(self) -> tuple[float, tuple[float, ...], int, str] | None:
        fits = self.state.pool.fits
        heads = [
            (self.used[name] / self.weight[name], rank, size, name)
            for name, jobs in self.waiting.items()
            for rank, size, _ in jobs.heads()
            if fits(size)
        ]
        return min(heads, default=None)


POLICY = WeightedFairShares
