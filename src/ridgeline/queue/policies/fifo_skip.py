"""First come, first served among the jobs that fit: what does not fit is passed over."""

from __future__ import annotations

from ridgeline.queue.in_order import InOrder
from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.waiting import Rank

CARD = PolicyCard(title="in order of arrival, skipping what does not fit; large jobs may starve")


class FirstThatFits(InOrder):
    """Arrival is the rank."""

    def rank(self, job: int) -> Rank:
        """The earlier submission goes first."""
        return (self.state.submit[job],)


POLICY = FirstThatFits
