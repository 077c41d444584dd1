"""Weighted fair shares, by which the queue that has least for its weight starts next.

Max-min fairness over GPUs, without interruptions; queues may be parts of others. Within a queue:
order of arrival, skipping what does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.queue.jobs_apart import jobs_waiting_on
from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.share_tree import Amounts, ShareTree

CARD = PolicyCard(
    title="the queue with the least GPUs for its weight first", source="Ghodsi et al., NSDI 2011"
)


class WeightedFairShares:
    """Waiting jobs by queue, and what each queue has of the GPUs, which are the only resource."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.waiting = jobs_waiting_on(
            state.pool,
            [((moment,), wish) for moment, wish in zip(state.submit, state.asked, strict=True)],
        )
        names = list(dict.fromkeys(state.queue))
        self.tree = ShareTree(names, state.cluster.queues, self.capacity())

    def capacity(self) -> Sequence[float]:
        """What there is of each resource: all GPUs of the pool."""
        return (self.state.pool.gpus,)

    def amounts(self, job: int) -> Amounts:
        """What a job has of each while it runs."""
        return (self.state.size[job],)

    def arrive(self, job: int) -> None:
        """Let a job wait in its queue."""
        state = self.state
        self.waiting.add(job, state.asked[job], (state.submit[job],), state.queue[job])

    def finished(self, job: int) -> None:
        """Its queue has so much less."""
        self.tree.change(self.state.queue[job], self.amounts(job), -1)

    def changed(self, job: int) -> None:
        """Do nothing with a job whose end has moved, since no ends are kept."""
        del job

    def schedule(self) -> None:
        """Start a job of the poorest queue that has one that fits, until there is none."""
        while fitting := self.waiting.first_fitting():
            name = self.tree.poorest({name: found.rank for name, found in fitting.items()})
            job = self.waiting.take(fitting[name])
            self.state.start(job)
            self.tree.change(name, self.amounts(job), 1)

    def next_moment(self) -> float:
        """Nothing is due by time alone."""
        return NEVER


POLICY = WeightedFairShares
