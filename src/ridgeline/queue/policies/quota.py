"""Quotas with borrowing and reclaim, after Kueue's cohort of cluster queues.

A queue may take more than its quota while others leave GPUs idle. A job that its queue's quota
covers gets them back: borrowers lose their newest jobs first, and only down to their quota
(Kueue's documentation, "Preemption": reclaimWithinCohort Any, queueing strategy BestEffortFIFO).
"""

from __future__ import annotations

from ridgeline.queue.cluster import QueueShare
from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.waiting import WaitingJobs

CARD = PolicyCard(
    title="quotas; idle GPUs are lent, and taken back from the newest borrowers",
    interrupts=True,
    source="Kueue documentation, Preemption",
)


class QuotasWithBorrowing:
    """Waiting jobs by queue, and who runs in each."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.waiting = {name: WaitingJobs() for name in dict.fromkeys(state.queue)}
        self.running: dict[str, dict[int, None]] = {name: {} for name in self.waiting}
        self.used = dict.fromkeys(self.waiting, 0)
        shares = state.cluster.queues
        self.quota = {name: shares.get(name, QueueShare()).quota for name in self.waiting}

    def arrive(self, job: int) -> None:
        """Let a job wait in its queue."""
        state = self.state
        self.waiting[state.queue[job]].add(job, state.size[job], (state.submit[job],))

    def finished(self, job: int) -> None:
        """Its queue has so many GPUs less."""
        name = self.state.queue[job]
        self.used[name] -= self.state.size[job]
        del self.running[name][job]

    def schedule(self) -> None:
        """Start what quotas cover, taking back what is lent; then lend what is left."""
        while self._start_covered() or self._lend():
            pass

    def next_moment(self) -> float:
        """Nothing is due by time alone."""
        return NEVER

    def _start_covered(self) -> bool:
        heads = sorted(
            (rank, size, name)
            for name, jobs in self.waiting.items()
            for rank, size, _ in jobs.heads()
            if self.used[name] + size <= self.quota[name]
        )
        for _, size, name in heads:
            if self.state.pool.fits(size) or self._take_back(size):
                self._start(name, size)
                return True
        return False

    def _lend(self) -> bool:
        fits = self.state.pool.fits
        heads = [
            (rank, size, name)
            for name, jobs in self.waiting.items()
            for rank, size, _ in jobs.heads()
            if fits(size)
        ]
        if heads:
            _, size, name = min(heads)
            self._start(name, size)
        return bool(heads)

    def _start(self, name: str, size: int) -> None:
        job = self.waiting[name].take(size)
        self.state.start(job)
        self.running[name][job] = None
        self.used[name] += size

    def _take_back(self, size: int) -> bool:
        """Interrupt borrowers, newest first, until a job fits; all or none of them."""
        state, lent = self.state, dict(self.used)
        newest = sorted(
            (job for name, jobs in self.running.items() for job in jobs if self._borrows(name)),
            key=lambda job: (-state.started_at[job], -job),
        )
        victims: list[int] = []
        room = state.pool.imagined()
        for job in newest:
            name = state.queue[job]
            if lent[name] <= self.quota[name]:
                continue
            lent[name] -= state.size[job]
            victims.append(job)
            room.change(state.held[job], 1)
            if room.fits(size):
                break
        enough = room.fits(size)
        if enough:
            for job in victims:
                self.finished(job)
                state.interrupt(job)
                self.arrive(job)
        return enough

    def _borrows(self, name: str) -> bool:
        return self.used[name] > self.quota[name]


POLICY = QuotasWithBorrowing
