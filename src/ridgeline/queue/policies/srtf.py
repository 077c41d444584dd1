"""Shortest remaining time first: a shorter job takes the GPUs of those that have longest to go."""

from __future__ import annotations

from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.preempting import Preempting
from ridgeline.queue.waiting import Rank

CARD = PolicyCard(title="shortest remaining time first, interrupting longer jobs", interrupts=True)


class ShortestRemainingFirst(Preempting):
    """Work left is the rank."""

    def rank(self, job: int) -> Rank:
        """Less work left first, then earlier submission."""
        return (self.state.remaining[job], self.state.submit[job])

    def last_first(self, job: int) -> Rank:
        """The latest end first: all running jobs go on at one speed."""
        return (-self.state.ends_at[job],)

    def outranks(self, job: int, other: int) -> bool:
        """Whether it ends earlier, were it started now, by more than an interruption costs."""
        cost = self.state.cluster.restart_seconds
        return self.state.now + self.state.remaining[job] + cost < self.state.ends_at[other]


POLICY = ShortestRemainingFirst
