"""What `fair` and `drf` share: the poorest queue of the tree starts its next job that fits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ridgeline.queue.jobs_apart import jobs_waiting_on
from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.share_tree import Amounts, ShareTree


class PoorestFirst(ABC):
    """Waiting jobs by queue, and what each queue has. Within a queue: by arrival, skipping."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.waiting = jobs_waiting_on(
            state.pool,
            [((moment,), wish) for moment, wish in zip(state.submit, state.asked, strict=True)],
        )
        names = list(dict.fromkeys(state.queue))
        self.tree = ShareTree(names, state.cluster.queues, self.capacity())

    @abstractmethod
    def capacity(self) -> Sequence[float]:
        """What there is of each resource."""

    @abstractmethod
    def amounts(self, job: int) -> Amounts:
        """What a job has of each while it runs."""

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
