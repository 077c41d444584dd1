"""First come, first served: only the job that has waited longest may start."""

from __future__ import annotations

from collections import deque

from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.policies import PolicyCard

CARD = PolicyCard(title="first in, first out; the head of the queue blocks all behind it")


class FirstInFirstOut:
    """A queue whose head blocks."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.waiting: deque[int] = deque()

    def arrive(self, job: int) -> None:
        """Queue at the end; a job that lost its node goes back to the front."""
        if self.state.interruptions[job]:
            self.waiting.appendleft(job)
        else:
            self.waiting.append(job)

    def finished(self, job: int) -> None:
        """Nothing is kept of running jobs."""

    def schedule(self) -> None:
        """Start the head while it fits."""
        state = self.state
        while self.waiting and state.pool.fits(state.asked[self.waiting[0]]):
            state.start(self.waiting.popleft())

    def changed(self, job: int) -> None:
        """Nothing is kept of running jobs."""

    def next_moment(self) -> float:
        """Nothing is due by time alone."""
        return NEVER


POLICY = FirstInFirstOut
