"""EASY backfill, in which later jobs may start where they do not delay the head of the queue.

Lifka, "The ANL/IBM SP scheduling system", 1995; Mu'alem and Feitelson, IEEE TPDS 2001. The head's
earliest start (its shadow time) comes from the ends of running jobs, which are known here. A later
job starts if it ends by then, or takes only GPUs that the head leaves spare. On nodes the spare
GPUs are counted, not placed: a backfilled job can then still delay the head by fragmentation.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

import numpy as np

from ridgeline.queue.contended import ContendedNodes
from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.holding_rows import HoldingRows
from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.pool import Asked, Held, ImaginedRoom

CARD = PolicyCard(
    title="first in, first out; others fill gaps without delaying the head",
    source="Lifka 1995; Mu'alem and Feitelson 2001",
)


class EasyBackfill:
    """A queue as arrays, so that a scan of thousands of waiting jobs is one operation."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._sizes = np.array(state.size)
        self._work = np.array(state.remaining)
        """What a waiting job will take, in seconds."""
        self._queue = np.empty(0, dtype=np.int64)
        self._new: list[int] = []
        self._ends: list[tuple[float, int]] = []
        """Ends of running jobs, the earliest first."""
        self._kept: tuple[int, float, float] | None = None
        """The head, its shadow and what that leaves free, as long as nothing can change them."""
        self._last = (NEVER, 0)
        """The end that the shadow waits for: jobs that end before it are no matter to it."""
        self._gpus = state.pool.gpus
        self._rows: HoldingRows | None = None
        """None: jobs of one size fit alike, and smaller ones where larger do."""
        self._running: ContendedNodes | None = None
        """Who runs, in the order of ends, where nodes are told apart."""
        if isinstance(state.pool, DetailedPool):
            self._rows = HoldingRows(state.pool, state.asked)
            self._running = ContendedNodes(state.pool)
        self._row_of = np.zeros(len(state.size), dtype=np.int64)
        self._end_of: dict[int, float] = {}

    def arrive(self, job: int) -> None:
        """Queue at the end; a job that lost its node is the oldest again."""
        self._new.append(job)
        if self._rows:
            self._row_of[job] = self._rows.add(self.state.asked[job])
        again = self.state.cluster.restart_seconds if self.state.interruptions[job] else 0.0
        self._work[job] = self.state.remaining[job] + again

    def finished(self, job: int) -> None:
        """Its end no longer counts."""
        end = (self._end_of.pop(job), job)
        if self.state.end[job] == NEVER or end > self._last:
            self._kept = None
        del self._ends[bisect_left(self._ends, end)]
        if self._running:
            self._running.leave(job)

    def changed(self, job: int) -> None:
        """Plan with its new end."""
        if job in self._end_of:
            del self._ends[bisect_left(self._ends, (self._end_of[job], job))]
            self._end_of[job] = self.state.ends_at[job]
            insort(self._ends, (self._end_of[job], job))
            if self._running:
                self._running.order(job, (self._end_of[job],))
            self._kept = None

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
            if not state.pool.fits(state.asked[head]):
                break
            self._start(head)
            started += 1
        self._queue = self._queue[started:]
        if len(self._queue) > 1 and state.pool.free:
            self._fill()

    def _fill(self) -> None:
        state = self.state
        shadow, spare = self._shadow_of(int(self._queue[0]))
        window = shadow - state.now
        sizes = self._sizes[self._queue]
        short = self._work[self._queue] <= window
        short[0] = False  # the head itself
        kept = np.ones(len(self._queue), dtype=bool)
        at, largest = 1, state.pool.free
        rows = self._row_of[self._queue]
        while largest := min(largest, state.pool.free):
            may = (sizes[at:] <= largest) & (short[at:] | (sizes[at:] <= spare))
            if self._rows:
                may &= self._rows.marks()[rows[at:]]
            first = int(may.argmax()) if may.any() else -1
            if first < 0:
                break
            at += first
            job = int(self._queue[at])
            if self._rows or state.pool.fits(state.asked[job]):
                self._start(job)
                kept[at] = False
                spare -= 0 if short[at] else state.size[job]
            else:  # nor does any as large
                largest = state.size[job] - 1
            at += 1
            if at >= len(self._queue):
                break
        self._queue = self._queue[kept]

    def _start(self, job: int) -> None:
        if self._rows:
            self._rows.drop(self.state.asked[job])
        self.state.start(job)
        self.took_up(job)

    def took_up(self, job: int) -> None:
        """Plan with the end of a job that runs."""
        self._end_of[job] = self.state.ends_at[job]
        end = (self.state.ends_at[job], job)
        insort(self._ends, end)
        if self._running:
            self._running.run(job, self.state.held[job])
            self._running.order(job, (self._end_of[job],))
        if end > self._last:
            self._kept = None

    def _shadow_of(self, head: int) -> tuple[float, float]:
        if self._gpus != self.state.pool.gpus:  # a node failed, or came back
            self._gpus, self._kept = self.state.pool.gpus, None
        if self._kept is None or self._kept[0] != head:
            self._kept = (head, *self._shadow(head))
        return self._kept[1:]

    def _shadow(self, head: int) -> tuple[float, float]:
        """When the head can start, in seconds, and how many GPUs it then leaves free."""
        state = self.state
        size = state.size[head]
        enough = self._fewest_ends(state.asked[head])
        if enough is None:
            self._last = (NEVER, 0)
            return NEVER, 0
        self._last = self._ends[enough - 1]
        free = state.pool.free + sum(state.size[job] for _, job in self._ends[:enough])
        return self._last[0], free - size

    def _fewest_ends(self, asked: Asked) -> int | None:
        """How many of the running jobs must end before a job fits; None: all are not enough."""
        if self._running:
            return self._running.fewest(asked)
        ends, held = self._ends, self.state.held
        room = self.state.pool.imagined()
        return fewest_given_back(room, len(ends), lambda place: held[ends[place][1]], asked)


POLICY = EasyBackfill


def fewest_given_back(
    room: ImaginedRoom, count: int, held: Callable[[int], Held], asked: Asked
) -> int | None:
    """How many of `count` jobs must, from the first on; None: all of them are not enough.

    What fits goes on fitting when more is given back, so the number is found in strides that grow
    and then halve. The room is left with so many given back, or all.
    """
    given, stride = 0, 1
    while True:
        before, given = given, min(given + stride, count)
        _move(room, held, before, given)
        if given and room.fits(asked):
            break
        if given == count:
            return None
        stride *= 2
    low, high = before, given  # not enough, enough
    while high - low > 1:
        middle = (low + high) // 2
        _move(room, held, given, middle)
        given = middle
        low, high = (low, middle) if room.fits(asked) else (middle, high)
    _move(room, held, given, high)
    return high


def _move(room: ImaginedRoom, held: Callable[[int], Held], given: int, to: int) -> None:
    """Give back so many instead; what was given last is taken again first."""
    for place in range(given, to):
        room.change(held(place), 1)
    for place in range(given - 1, to - 1, -1):
        room.change(held(place), -1)
