"""Priority with preemption, where a more urgent job takes the GPUs of the least urgent."""

from __future__ import annotations

from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.preempting import Preempting
from ridgeline.queue.waiting import Rank

CARD = PolicyCard(
    title="most urgent first, interrupting less urgent jobs, the newest first", interrupts=True
)


class MostUrgentFirst(Preempting):
    """Priority, then arrival, is the rank."""

    def rank(self, job: int) -> Rank:
        """Larger priority first, then earlier submission."""
        return (-self.state.priority[job], self.state.submit[job])

    def last_first(self, job: int) -> Rank:
        """Least urgent, then newest."""
        return (self.state.priority[job], -self.state.started_at[job])

    def below(self, job: int) -> float:
        """The priority of the job, so that less urgent ones may go."""
        return self.state.priority[job]


POLICY = MostUrgentFirst
