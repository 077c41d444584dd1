"""Waiting jobs that may interrupt others, on nodes that are told apart, and who may try again.

Whoever found neither room nor anybody to interrupt finds none until more of some node comes within
its reach: what is free there and what jobs hold that it outranks. Jobs that ask alike share a row,
and only the first of them in rank tries.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.contended import ContendedNodes
from ridgeline.queue.detailed_pool import DetailedHeld, DetailedPool, domains_of
from ridgeline.queue.holding_rows import HoldingRows
from ridgeline.queue.vain_rows import NodeGain, VainRows
from ridgeline.queue.waiting import Rank
from ridgeline.queue.wants import NodePiece, Wish

_ONE_BY_ONE = 4
"""Rows that are looked at again one by one before it is done for all together."""
_SLACK_SECONDS = 1e-3
"""By how much a rank that time wears away may be taken too high."""


class Contenders:
    """Rows of waiting jobs, those that may try first in rank first."""

    def __init__(self, pool: DetailedPool, asked: Sequence[Wish]) -> None:
        self.nodes = ContendedNodes(pool)
        self._pool = pool
        self._rows = HoldingRows(pool, asked)
        self._waiting: dict[int, list[tuple[Rank, int]]] = {}
        """By row, each a heap."""
        self._new: set[int] = set()
        """Rows whose first job has not tried yet."""
        self._in_turn: list[tuple[Rank, int, int]] = []
        """Those, with their rows; who has tried since stays until it is met."""
        weakest = [_weakest(self._rows.wish(row)) for row in range(len(self._rows))]
        self._vain = VainRows(pool.rooms, self.nodes, self._rows, weakest)
        self._tried: dict[int, int] = {}
        """How many gains there had been when the first of a row last tried."""
        self._lacked: dict[int, NDArray[np.int64]] = {}
        """How many nodes the first of a row lacked in each domain when it last tried."""
        self._last_gain = np.zeros(len(pool.rooms), dtype=np.int64)
        """How many gains there had been when more of each node last came within anybody's reach."""
        self._spared = -1
        """The row that did not try, since it must still lack nodes."""
        self._again: list[int] = []
        """Rows that tried in vain and may try again, the first in rank at the end."""
        self._changes = 0
        """How many changes of the pool there had been when those were found."""
        self._looked_at = 0
        """How many gains there had been by then."""
        self._gains = 0
        self._gained: dict[int, NodeGain] = {}
        """Nodes that came within somebody's reach since all tried in vain who could gain by it."""

    def add(self, job: int, wish: Wish, rank: Rank) -> None:
        """Let a job wait, and try if nobody who asks alike is before it."""
        row = self._rows.add(wish)
        heap = self._waiting.setdefault(row, [])
        heapq.heappush(heap, ((*rank, job), job))
        if heap[0][1] == job:
            self._let_try(row)

    def first(self, faded: float) -> tuple[int, Wish] | None:
        """The first in rank that may try, and what it asks for.

        `faded` is by how much `below` has fallen since the zero of the clock: time, or 0.
        """
        while self._in_turn:
            _, job, row = self._in_turn[0]
            if row in self._new and self._waiting[row][0][1] == job:
                break
            heapq.heappop(self._in_turn)
        if self._looked_at < self._gains:
            self._look(faded)
        for _ in range(_ONE_BY_ONE):
            if not self._again or self._may_try_again(self._again[-1], faded):
                break
            self._again.pop()
        else:
            self._look(faded)
        if not self._again:
            self._gained.clear()
            return self._who(self._in_turn[0][2]) if self._in_turn else None
        row = self._again[-1]
        if self._in_turn and self._in_turn[0][0] < self._waiting[row][0][0]:
            row = self._in_turn[0][2]
        return self._who(row)

    def fits(self, wish: Wish) -> bool:
        """Whether a job could start now."""
        return self._rows.has_room(wish)

    def victims(self, wish: Wish, below: float) -> list[int]:
        """Whom the first of those that ask for this must interrupt; empty: that cannot be done.

        Who tried in vain looks at nodes alone that came within reach since.
        """
        row = self._rows.row(wish)
        if row in self._new:
            return self.nodes.victims(wish, below)
        tried = self._tried[row]
        if self._must_lack(row, wish):
            self._spared = row
            return []
        nodes = [node for node, gain in self._gained.items() if gain.number > tried]
        return self.nodes.victims(wish, below, nodes)

    def take(self, wish: Wish) -> None:
        """Remove the first of those that ask for this; the next may try."""
        row = self._rows.row(wish)
        heapq.heappop(self._waiting[row])
        self._rows.drop(wish)
        self._new.discard(row)
        self._vain.drop(row)
        if self._waiting[row]:
            self._let_try(row)
        else:
            del self._waiting[row]

    def give_up(self, wish: Wish, below: float) -> None:
        """Let those that ask for this try no more for now; the first outranks what is below."""
        row = self._rows.row(wish)
        self._new.discard(row)
        self._vain.add(row, self._waiting[row][0][0], below, self._gains)
        if row != self._spared:
            self._tried[row] = self._gains
            self._lacked.pop(row, None)
            if self.nodes.lacked is not None:
                self._lacked[row] = self.nodes.lacked
        self._spared = -1
        if self._again and self._again[-1] == row:
            self._again.pop()

    def all_may_try(self) -> None:
        """Let everyone try again: nodes failed, or came back."""
        self.nodes.forget_reach()
        for row in self._vain.rows():
            self._let_try(row)

    def reached(self, held: DetailedHeld, last: float) -> None:
        """Let those try again for whom a node could be enough of which these pieces are part.

        They were given back, or their job has another rank now. `last` is the last in order of the
        jobs that held them: whoever outranks it had them within reach before.
        """
        self._gains += 1
        for node, _ in held:
            self._last_gain[node] = self._gains
            before = self._gained.get(node)
            last = max(last, before.last) if before else last
            self._gained[node] = NodeGain(self._gains, last)

    def _must_lack(self, row: int, wish: Wish) -> bool:
        """Whether fewer nodes gained in every domain, since the first of a row tried, than lacked.

        What is within its reach grows by gains alone.
        """
        lacked = self._lacked.get(row)
        if lacked is None:
            return False
        gained = domains_of(wish, self._pool)[self._last_gain > self._tried[row]]
        return bool((np.bincount(gained, minlength=len(lacked)) < lacked).all())

    def _look(self, faded: float) -> None:
        """Find who may try again, now that others have given something back or taken it."""
        slack = _SLACK_SECONDS if faded else 0.0
        self._again = self._vain.in_reach(self._gained, self._gains, faded, slack)[::-1]
        self._looked_at, self._changes = self._gains, len(self._pool.changes)

    def _may_try_again(self, row: int, faded: float) -> bool:
        """Whether that is still so for a row of which it was found."""
        if row not in self._vain:
            return False
        if self._changes == len(self._pool.changes):
            return True
        slack = _SLACK_SECONDS if faded else 0.0
        below = self._vain.below(row) - faded + slack
        if below <= self.nodes.lowest():
            return self._rows.has_room(self._rows.wish(row))
        tried = self._tried[row]
        return any(
            tried < gain.number
            and below <= gain.last + 2 * slack
            and self._vain.is_within(node, below, row)
            for node, gain in self._gained.items()
        )

    def _who(self, row: int) -> tuple[int, Wish]:
        return self._waiting[row][0][1], self._rows.wish(row)

    def _let_try(self, row: int) -> None:
        self._vain.drop(row)
        self._new.add(row)
        rank, job = self._waiting[row][0]
        heapq.heappush(self._in_turn, (rank, job, row))


def _weakest(wish: Wish) -> NodePiece:
    """The piece that a node must hold for it to be of any use to a job."""
    found = wish.single or wish.rest or wish.full
    return found if found is not None else NodePiece(gpus=0)
