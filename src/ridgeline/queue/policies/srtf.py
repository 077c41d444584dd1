"""Shortest remaining time first: a shorter job takes the GPUs of those that have longest to go."""

from __future__ import annotations

from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.preempting import Preempting
from ridgeline.queue.waiting import Rank

CARD = PolicyCard(title="shortest remaining time first, interrupting longer jobs", interrupts=True)


class ShortestRemainingFirst(Preempting):
    """Work left is the rank."""

    fades = True

    def rank(self, job: int) -> Rank:
        """Less work left first, then earlier submission."""
        return (self.state.remaining[job], self.state.submit[job])

    def last_first(self, job: int) -> Rank:
        """The latest end first, each at its best speed, as that of a waiting job is foretold.

        By ends as they are, two jobs that both run slower than at best could interrupt each other
        without end.
        """
        return (-self.state.ends_at_best(job),)

    def below(self, job: int) -> float:
        """The number of a job that ends when it would, plus what an interruption costs."""
        cost = self.state.cluster.restart_seconds
        return -(self.state.now + self.state.remaining[job] + cost)


POLICY = ShortestRemainingFirst
