"""Weighted fair shares, by which the queue that has least for its weight starts next.

Max-min fairness over GPUs, without interruptions; queues may be parts of others. Within a queue:
order of arrival, skipping what does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.share_tree import Amounts
from ridgeline.queue.tree_order import PoorestFirst

CARD = PolicyCard(
    title="the queue with the least GPUs for its weight first", source="Ghodsi et al., NSDI 2011"
)


class WeightedFairShares(PoorestFirst):
    """GPUs are the only resource."""

    def capacity(self) -> Sequence[float]:
        """All GPUs of the pool."""
        return (self.state.pool.gpus,)

    def amounts(self, job: int) -> Amounts:
        """The GPUs of a job."""
        return (self.state.size[job],)


POLICY = WeightedFairShares
