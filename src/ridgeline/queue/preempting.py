"""What policies share that interrupt: the earlier in rank takes GPUs from the later.

A waiting job that does not fit may interrupt running jobs that it outranks, the last in rank
first. Whom it does not need is spared, the first in rank first, as kube-scheduler reprieves; if all
of them are not enough, none is touched.
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
        self._in_vain: dict[int, int] = {}
        """Size and waiting job that found no room; it finds none until one that it does not outrank
        ends, or capacity or ranks change."""
        self._gpus = state.pool.gpus

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
        """Let those try again for whom its GPUs were out of reach."""
        ended = self.state.end[job] != NEVER
        self._in_vain = {
            size: waiting
            for size, waiting in self._in_vain.items()
            if ended and self.outranks(waiting, job)
        }

    def next_moment(self) -> float:
        """Nothing is due by time alone."""
        return NEVER

    def schedule(self) -> None:
        """Start or make room for each in rank, until none of any size can start."""
        if self._gpus != self.state.pool.gpus:  # a node failed, or came back
            self._gpus = self.state.pool.gpus
            self._in_vain.clear()
        blocked: set[int] = set()
        while True:
            heads = [head for head in self.waiting.heads() if head[1] not in blocked]
            if not heads:
                return
            _, size, job = min(heads)
            if self.state.pool.fits(size):
                self._start(size)
            elif self._in_vain.get(size) == job:
                blocked.add(size)
            elif victims := self._room_for(job):
                self.waiting.take(size)
                for victim in victims:
                    self.state.interrupt(victim)
                self._begin(job)
                for victim in victims:
                    self.arrive(victim)
                blocked.clear()
                self._in_vain.clear()
            else:
                blocked.add(size)
                self._in_vain[size] = job

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
        victims: dict[int, None] = {}
        while self._running and not state.pool.fits(size):
            entry = heapq.heappop(self._running)
            rank, other, started = entry
            current = other in state.held and state.started_at[other] == started
            if not current or other in victims or rank != self.last_first(other):
                continue
            met.append(entry)
            if not self.outranks(job, other):
                break
            victims[other] = None
            state.pool.give(state.held[other])
        enough = state.pool.fits(size)
        needed = []
        for victim in reversed(victims):
            state.pool.retake(state.held[victim])
            if enough and not state.pool.fits(size):
                state.pool.give(state.held[victim])
                needed.append(victim)
        for victim in needed:
            state.pool.retake(state.held[victim])
        for entry in met:
            if entry[1] not in needed:
                heapq.heappush(self._running, entry)
        return needed[::-1]
