"""Shortest job first, skipping what does not fit."""

from __future__ import annotations

from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.policies.fifo_skip import FirstThatFits
from ridgeline.queue.waiting import Rank

CARD = PolicyCard(title="shortest first, skipping what does not fit; durations must be known")


class ShortestFirst(FirstThatFits):
    """Duration is the rank."""

    def rank(self, job: int) -> Rank:
        """Less work left first, then earlier submission."""
        return (self.state.remaining[job], self.state.submit[job])


POLICY = ShortestFirst
