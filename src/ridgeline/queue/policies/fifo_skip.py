"""First come, first served among the jobs that fit: what does not fit is passed over."""

from __future__ import annotations

from ridgeline.queue.jobs_apart import jobs_waiting_on
from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.waiting import Rank

CARD = PolicyCard(title="in order of arrival, skipping what does not fit; large jobs may starve")


class FirstThatFits:
    """Arrival is the rank; a policy with another one that never interrupts says so in `rank`."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        ranked = sorted((self.rank(job), job) for job in range(len(state.size)))
        self.waiting = jobs_waiting_on(
            state.pool, [(rank, state.asked[job]) for rank, job in ranked]
        )

    def rank(self, job: int) -> Rank:
        """The earlier submission goes first."""
        return (self.state.submit[job],)

    def arrive(self, job: int) -> None:
        """Let a job wait at its rank."""
        self.waiting.add(job, self.state.asked[job], self.rank(job))

    def finished(self, job: int) -> None:
        """Do nothing with a job that ended, since nothing is kept of running ones."""
        del job

    def schedule(self) -> None:
        """Start the first that fits, until none does."""
        while found := self.waiting.first_fitting():
            (first,) = found.values()
            self.state.start(self.waiting.take(first))

    def changed(self, job: int) -> None:
        """Do nothing with a job whose end has moved, since no ends are kept."""
        del job

    def next_moment(self) -> float:
        """Nothing is due by time alone."""
        return NEVER


POLICY = FirstThatFits
