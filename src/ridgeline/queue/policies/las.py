"""Least attained service in two queues, as Tiresias has it: durations need not be known.

Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning", NSDI 2019, section 3.3
(discretised two-dimensional LAS, two queues). A job starts in the first queue and leaves it after
`las_gpu_seconds` of work; the first queue interrupts the second, and each is first in, first out.
"""

from __future__ import annotations

import heapq

from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.preempting import Preempting
from ridgeline.queue.waiting import Rank

NEARLY_SECONDS = 1e-6
"""Less than that to go is none."""

CARD = PolicyCard(
    title="little work done so far first, in two queues; durations need not be known",
    interrupts=True,
    source="Gu et al., Tiresias, NSDI 2019",
)


class LeastAttainedService(Preempting):
    """The queue that a job is in, then arrival, is the rank."""

    def __init__(self, state: ClusterState) -> None:
        super().__init__(state)
        self._level = [0] * len(state.size)
        self._leaves: list[tuple[float, int, float]] = []

    def rank(self, job: int) -> Rank:
        """First queue first, then earlier submission."""
        return (self._level[job], self.state.submit[job])

    def last_first(self, job: int) -> Rank:
        """Second queue first, then newest submission."""
        return (-self._level[job], -self.state.submit[job], -job)

    def below(self, job: int) -> float:
        """The number of its own queue, so that the first interrupts the second."""
        return -self._level[job]

    def schedule(self) -> None:
        """Move who has worked enough to the second queue, then start."""
        state = self.state
        while self._leaves and self._leaves[0][0] <= state.now:
            _, job, started = heapq.heappop(self._leaves)
            if job not in state.held or state.started_at[job] != started or self._level[job]:
                continue
            if self._to_go(job) > NEARLY_SECONDS:  # it has become slower since
                self.note_running(job)
                continue
            self._level[job] = 1
            self.note_running(job)
            self._in_reach_of_more(job)
        super().schedule()

    def note_running(self, job: int) -> None:
        """Order it among the running, and note when it leaves the first queue."""
        super().note_running(job)
        state = self.state
        if self._level[job] == 0:
            leaves = state.has_worked(job, self._to_go(job))
            if leaves < state.ends_at[job]:
                heapq.heappush(self._leaves, (leaves, job, state.started_at[job]))

    def next_moment(self) -> float:
        """When the next running job leaves the first queue."""
        state = self.state
        while self._leaves:
            moment, job, started = self._leaves[0]
            if job in state.held and state.started_at[job] == started and self._level[job] == 0:
                return moment
            heapq.heappop(self._leaves)
        return NEVER

    def _to_go(self, job: int) -> float:
        """Seconds of work until it leaves the first queue."""
        state = self.state
        left = state.cluster.las_gpu_seconds - state.attained(job)
        return max(0.0, left) / float(state.size[job])


POLICY = LeastAttainedService
