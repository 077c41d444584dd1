"""What policies share that interrupt: the earlier in rank takes GPUs from the later.

A waiting job that does not fit may interrupt running jobs that it outranks, the last in rank
first. Whom it does not need is spared, the first in rank first, as kube-scheduler reprieves; if all
of them are not enough, none is touched.

Most jobs that look for somebody to interrupt find that all whom they outrank are not enough. That
is summed up over arrays where nodes differ by free GPUs alone, a row for each node that a job runs
on, before anybody is tried.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ridgeline.queue.contenders import Contenders
from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.pool import Asked, CountedPool, GpuPool, Held, ImaginedRoom, NodePool
from ridgeline.queue.waiting import Rank, WaitingJobs


class Preempting(ABC):
    """Start jobs by rank, and make room for them."""

    fades = False
    """Whether `below` falls with time, a second each second."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.waiting = WaitingJobs()
        self._running = RankedRunning(state.pool)
        self._in_vain: dict[Asked, int] = {}
        """Size and waiting job that found no room; it finds none until more of some node comes
        within its reach, which is what is free and what jobs hold that it outranks."""
        self._on_node: dict[int, dict[int, int]] = {}
        """GPUs by job, of each node that any job runs on."""
        self._places: dict[int, Held] = {}
        self._gpus = state.pool.gpus
        pool = state.pool
        self._counted = isinstance(pool, CountedPool)
        self._apart = Contenders(pool, state.asked) if isinstance(pool, DetailedPool) else None
        """Waiting and running jobs instead, where nodes are told apart."""

    @abstractmethod
    def rank(self, job: int) -> Rank:
        """What a waiting job is ordered by; smaller is earlier."""

    @abstractmethod
    def last_first(self, job: int) -> Rank:
        """What running jobs are ordered by; the smallest is interrupted first."""

    @abstractmethod
    def below(self, job: int) -> float:
        """A waiting job may take the GPUs of running ones whose first number is less than this."""

    def outranks(self, job: int, other: int) -> bool:
        """Whether a waiting job may take the GPUs of a running one."""
        return bool(self.last_first(other)[0] < self.below(job))

    def arrive(self, job: int) -> None:
        """Let a job wait at its rank."""
        if self._apart:
            self._apart.add(job, self.state.asked[job], self.rank(job))
        else:
            self.waiting.add(job, self.state.asked[job], self.rank(job))

    def finished(self, job: int) -> None:
        """Let those try again for whom its GPUs were out of reach, and are enough now."""
        held = self._leave(job)
        if self.state.end[job] == NEVER:  # it was struck by a failure
            self._all_may_try()
        else:
            self._reached([job], held)

    def changed(self, job: int) -> None:
        """Order a running job anew whose end has moved."""
        if job in self.state.held:
            self.note_running(job)
            self._in_reach_of_more(job)

    def next_moment(self) -> float:
        """Nothing is due by time alone."""
        return NEVER

    def schedule(self) -> None:
        """Start or make room for each in rank, until none of any size can start."""
        if self._gpus != self.state.pool.gpus:  # a node failed, or came back
            self._gpus = self.state.pool.gpus
            self._all_may_try()
        if self._apart:
            self._schedule_apart(self._apart)
            return
        heads = self._heads()
        while heads:
            _, job, size = heapq.heappop(heads)
            if self.state.pool.fits(size):
                self._begin(self.waiting.take(size))
                following = self.waiting.head(size)
                if following is not None:
                    heapq.heappush(heads, (*following, size))
            elif self._in_vain.get(size) == job:
                continue
            elif victims := self._room_for(job):
                self.waiting.take(size)
                self._instead(job, victims)
                heads = self._heads()
            else:
                self._in_vain[size] = job

    def _heads(self) -> list[tuple[Rank, int, Asked]]:
        """The first waiting job of each size, as a heap."""
        heads = [(rank, job, size) for rank, size, job in self.waiting.heads()]
        heapq.heapify(heads)
        return heads

    def _schedule_apart(self, apart: Contenders) -> None:
        """Do the same with the first in rank that may try, until nobody may."""
        while found := apart.first(self._faded()):
            job, asked = found
            if apart.fits(asked):
                apart.take(asked)
                self._begin(job)
            elif victims := apart.victims(asked, self.below(job)):
                apart.take(asked)
                self._instead(job, victims)
            else:
                apart.give_up(asked, self.below(job) + self._faded())

    def _instead(self, job: int, victims: Sequence[int]) -> None:
        """Start a job in the place of others, which wait again."""
        left: Held = []
        for victim in victims:
            left += self._leave(victim)
            self.state.interrupt(victim)
        self._begin(job)
        for victim in victims:
            self.arrive(victim)
        self._reached(victims, left)

    def note_running(self, job: int) -> None:
        """Order a running job among the others, anew where its rank has changed."""
        if self._apart:
            self._apart.nodes.order(job, self.last_first(job))
            return
        self._running.order(job, self.last_first(job))

    def _begin(self, job: int) -> None:
        if self._apart:
            self.state.start(job)
            self._apart.nodes.run(job, self.state.held[job])
            self.note_running(job)
            return
        if self._in_vain.get(self.state.asked[job]) == job:
            del self._in_vain[self.state.asked[job]]
        self.state.start(job)
        self._places[job] = self.state.held[job]
        for node, count in self._places[job]:
            self._on_node.setdefault(node, {})[job] = count
        self._running.run(job, self._places[job])
        self.note_running(job)

    def _leave(self, job: int) -> Held:
        if self._apart:
            return self._apart.nodes.leave(job)
        self._running.leave(job)
        held = self._places.pop(job)
        for node, _ in held:
            self._on_node[node].pop(job, None)
        return held

    def _in_reach_of_more(self, job: int) -> None:
        """Let those try again that outrank a running job since its rank has changed."""
        if self._apart:
            self._apart.reached(self.state.held[job], NEVER)
            return
        held = self._places[job]
        self._in_vain = {
            size: waiting
            for size, waiting in self._in_vain.items()
            if not self._opens(size, waiting, held)
        }

    def _reached(self, jobs: Sequence[int], held: Held) -> None:
        """Let those try again in whose reach the GPUs of jobs come, and are enough on a node."""
        last = max(self.last_first(job)[0] for job in jobs)
        if self._apart:
            self._apart.reached(held, last)
            return
        lowest = self._running.lowest()
        self._in_vain = {
            size: waiting
            for size, waiting in self._in_vain.items()
            if last < (below := self.below(waiting))
            or (self._counted and below <= lowest)  # it outranks nobody
            or not self._opens(size, waiting, held)
        }

    def _all_may_try(self) -> None:
        self._in_vain.clear()
        if self._apart:
            self._apart.all_may_try()

    def _faded(self) -> float:
        """By how much `below` of a waiting job has fallen since the clock's zero."""
        return self.state.now if self.fades else 0.0

    def _opens(self, size: Asked, waiting: int, held: Held) -> bool:
        """Whether one of these nodes could now give what a job lacks; else it is still in vain."""
        pool = self.state.pool
        if not isinstance(pool, NodePool):
            return True
        lacks = size % pool.largest or pool.largest
        for node, _ in held:
            within = pool.free_of[node]
            for other, count in self._on_node.get(node, {}).items():
                if self.outranks(waiting, other):
                    within += count
            if within >= lacks:
                return True
        return False

    def _room_for(self, job: int) -> list[int]:
        """Running jobs that it outranks and whose GPUs are enough; empty: there are none."""
        state, size = self.state, self.state.asked[job]
        below = self.below(job)
        if below <= self._running.lowest() or not self._running.could_make_room(size, below):
            return []
        room = state.pool.imagined()
        victims: list[int] = []
        for other in self._running.below(below):
            victims.append(other)
            room.change(state.held[other], 1)
            if room.fits(size):
                return self._needed(size, room, victims)
        return []

    def _needed(self, size: Asked, room: ImaginedRoom, victims: list[int]) -> list[int]:
        """The victims without those that can be spared, the first in rank tried first."""
        needed = []
        for victim in reversed(victims):
            held = self.state.held[victim]
            room.change(held, -1)
            if not room.fits(size):
                room.change(held, 1)
                needed.append(victim)
        return needed[::-1]


_FIRST_ROWS = 256


class RankedRunning:
    """Who runs, the first to be interrupted first."""

    def __init__(self, pool: GpuPool) -> None:
        self._pool = pool
        self._keys: list[tuple[Any, ...]] = []
        """What they are ordered by, and the job."""
        self._key_of: dict[int, tuple[Any, ...]] = {}
        self._rows_of: dict[int, list[int]] = {}
        self._free: list[int] = []
        self._node = np.zeros(0, dtype=np.int64)
        self._gpus = np.zeros(0, dtype=np.int64)
        self._first = np.zeros(0)
        """The first number of the job in a row; infinite: nobody has it."""

    def run(self, job: int, held: Held) -> None:
        """Note where a job runs; `order` says in which order it stands."""
        if not isinstance(self._pool, CountedPool | NodePool):
            return
        rows = self._rows_of[job] = []
        for node, gpus in held:
            if not self._free:
                self._grow()
            row = self._free.pop()
            rows.append(row)
            self._node[row], self._gpus[row] = node, gpus

    def order(self, job: int, numbers: tuple[Any, ...]) -> None:
        """Set by what a running job is ordered, anew where that has changed."""
        self._forget(job)
        key = self._key_of[job] = (*numbers, job)
        insort(self._keys, key)
        self._first[self._rows_of.get(job, [])] = key[0]

    def leave(self, job: int) -> None:
        """Take out a job that runs no longer."""
        self._forget(job)
        rows = self._rows_of.pop(job, [])
        self._first[rows] = np.inf
        self._free += rows

    def lowest(self) -> float:
        """The first number of the job that is interrupted first; infinite: none runs."""
        return float(self._keys[0][0]) if self._keys else np.inf

    def below(self, number: float) -> Iterator[int]:
        """The jobs whose first number is less, in order."""
        for key in self._keys:
            if not key[0] < number:
                return
            yield key[-1]

    def could_make_room(self, asked: Asked, number: float) -> bool:
        """Whether a job would fit if nobody ran whose first number is less.

        Of a pool that is neither counted nor of plain nodes it is not known, and not denied.
        """
        pool = self._pool
        if not isinstance(pool, CountedPool | NodePool):
            return True
        rows = np.flatnonzero(self._first < number)
        if isinstance(pool, CountedPool):
            return bool(pool.free + self._gpus[rows].sum() >= asked)
        given = np.bincount(self._node[rows], self._gpus[rows], minlength=len(pool.free_of))
        reach = given + np.array(pool.free_of)
        whole, rest = divmod(asked, pool.largest)
        if np.count_nonzero(reach >= pool.largest) < whole:
            return False
        return not rest or np.count_nonzero(reach >= rest) > whole

    def _forget(self, job: int) -> None:
        key = self._key_of.pop(job, None)
        if key is not None:
            del self._keys[bisect_left(self._keys, key)]

    def _grow(self) -> None:
        before = len(self._node)
        more = max(_FIRST_ROWS, before)
        self._free += range(before, before + more)
        zeros = np.zeros(more, dtype=np.int64)
        self._node, self._gpus = (np.concatenate([one, zeros]) for one in (self._node, self._gpus))
        self._first = np.concatenate([self._first, np.full(more, np.inf)])
