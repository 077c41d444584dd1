"""EASY backfill, in which later jobs may start where they do not delay the head of the queue.

Lifka, "The ANL/IBM SP scheduling system", 1995; Mu'alem and Feitelson, IEEE TPDS 2001. The head's
earliest start (its shadow time) comes from the ends of running jobs, which are known here. A later
job starts if it ends by then, or takes only GPUs that the head leaves spare. On nodes the spare
GPUs are counted, not placed: a backfilled job can then still delay the head by fragmentation.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.policies import PolicyCard

CARD = PolicyCard(
    title="first in, first out; others fill gaps without delaying the head",
    source="Lifka 1995; Mu'alem and Feitelson 2001",
)


class EasyBackfill:
    """A queue as arrays, so that a scan of thousands of waiting jobs is one operation."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._sizes = np.array(state.size, dtype=np.int64)
        self._queue = np.empty(0, dtype=np.int64)
        self._new: list[int] = []
        self._ends: list[tuple[float, int]] = []
        """Ends of running jobs, the earliest first."""

    def arrive(self, job: int) -> None:
        """Queue at the end; a job that lost its node is the oldest again."""
        self._new.append(job)

    def finished(self, job: int) -> None:
        """Its end no longer counts."""
        del self._ends[bisect_left(self._ends, (self.state.ends_at[job], job))]

    def next_moment(self) -> float:
        """Nothing is due by time alone."""
        return NEVER

    def schedule(self) -> None:
        """Start heads that fit, then fill around the first that does not."""
        state = self.state
        if self._new:
            self._queue = np.concatenate([self._queue, np.array(self._new, dtype=np.int64)])
            if any(state.interruptions[job] for job in self._new):
                self._queue.sort()  # jobs are numbered in the order of submission
            self._new.clear()
        started = 0
        while started < len(self._queue):
            head = int(self._queue[started])
            if not state.pool.fits(state.size[head]):
                break
            self._start(head)
            started += 1
        self._queue = self._queue[started:]
        if len(self._queue) > 1 and state.pool.free:
            self._fill()

    def _fill(self) -> None:
        state = self.state
        shadow, spare = self._shadow(state.size[int(self._queue[0])])
        window = shadow - state.now
        sizes = self._sizes[self._queue]
        left = np.array([state.remaining[job] + self._delay(job) for job in self._queue.tolist()])
        short = left <= window
        short[0] = False  # the head itself
        kept = np.ones(len(self._queue), dtype=bool)
        at = 1
        while state.pool.free:
            may = (sizes[at:] <= state.pool.free) & (short[at:] | (sizes[at:] <= spare))
            first = int(may.argmax()) if may.any() else -1
            if first < 0:
                break
            at += first
            job = int(self._queue[at])
            if state.pool.fits(state.size[job]):
                self._start(job)
                kept[at] = False
                spare -= 0 if short[at] else state.size[job]
            at += 1
            if at >= len(self._queue):
                break
        self._queue = self._queue[kept]

    def _start(self, job: int) -> None:
        self.state.start(job)
        insort(self._ends, (self.state.ends_at[job], job))

    def _delay(self, job: int) -> float:
        return self.state.cluster.restart_seconds if self.state.interruptions[job] else 0.0

    def _shadow(self, size: int) -> tuple[float, int]:
        """When the head can start, in seconds, and how many GPUs it then leaves free."""
        state = self.state
        taken: list[int] = []
        found = (NEVER, 0)
        for end, job in self._ends:
            state.pool.give(state.held[job])
            taken.append(job)
            if state.pool.fits(size):
                found = end, state.pool.free - size
                break
        for job in reversed(taken):
            state.pool.retake(state.held[job])
        return found


POLICY = EasyBackfill
