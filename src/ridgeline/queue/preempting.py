"""What policies share that interrupt: the earlier in rank takes GPUs from the later.

A waiting job that does not fit may interrupt running jobs that it outranks, the last in rank
first, as few as it needs; if all of them are not enough, none is touched.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod

from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.waiting import Rank, WaitingJobs


class Preempting(ABC):
    """Start jobs by rank, and make room for them."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.waiting = WaitingJobs()
        self._running: list[tuple[Rank, int, float]] = []
        """Running jobs, the last in rank first; entries of the past stay until they are met."""

    @abstractmethod
    def rank(self, job: int) -> Rank:
        """What a waiting job is ordered by; smaller is earlier."""

    @abstractmethod
    def last_first(self, job: int) -> Rank:
        """What running jobs are ordered by; the smallest is interrupted first."""

    @abstractmethod
    def outranks(self, job: int, other: int) -> bool:
        """Whether a waiting job may take the GPUs of a running one."""

    def arrive(self, job: int) -> None:
        """Let a job wait at its rank."""
        self.waiting.add(job, self.state.size[job], self.rank(job))

    def finished(self, job: int) -> None:
        """Do nothing with a job that ended: what is noted of it is checked when it is met."""
        del job

    def next_moment(self) -> float:
        """Nothing is due by time alone."""
        return NEVER

    def schedule(self) -> None:
        """Start or make room for each in rank, until none of any size can start."""
        blocked: set[int] = set()
        while True:
            heads = [head for head in self.waiting.heads() if head[1] not in blocked]
            if not heads:
                return
            _, size, job = min(heads)
            if self.state.pool.fits(size):
                self._start(size)
            elif victims := self._room_for(job):
                self.waiting.take(size)
                for victim in victims:
                    self.state.interrupt(victim)
                self._begin(job)
                for victim in victims:
                    self.arrive(victim)
                blocked.clear()
            else:
                blocked.add(size)

    def note_running(self, job: int) -> None:
        """Order a running job among the others, anew where its rank has changed."""
        entry = (self.last_first(job), job, self.state.started_at[job])
        heapq.heappush(self._running, entry)

    def _start(self, size: int) -> None:
        self._begin(self.waiting.take(size))

    def _begin(self, job: int) -> None:
        self.state.start(job)
        self.note_running(job)

    def _room_for(self, job: int) -> list[int]:
        """Running jobs that it outranks and whose GPUs are enough; empty: there are none."""
        state, size = self.state, self.state.size[job]
        met: list[tuple[Rank, int, float]] = []
        victims: list[int] = []
        while self._running and not state.pool.fits(size):
            entry = heapq.heappop(self._running)
            rank, other, started = entry
            current = other in state.held and state.started_at[other] == started
            if not current or other in victims or rank != self.last_first(other):
                continue
            met.append(entry)
            if not self.outranks(job, other):
                break
            victims.append(other)
            state.pool.give(state.held[other])
        enough = state.pool.fits(size)
        for victim in reversed(victims):
            state.pool.retake(state.held[victim])
        for entry in met:
            if not enough or entry[1] not in victims:
                heapq.heappush(self._running, entry)
        return victims if enough else []
