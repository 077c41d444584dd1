"""Waiting jobs that may interrupt others, on nodes that are told apart, and who may try again.

Whoever found neither room nor anybody to interrupt finds none until more of some node comes within
its reach: what is free there and what jobs hold that it outranks. Jobs that ask alike share a row,
and only the first of them in rank tries.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.queue.contended import Amounts, ContendedNodes
from ridgeline.queue.detailed_pool import DetailedHeld, DetailedPool
from ridgeline.queue.holding_rows import HoldingRows
from ridgeline.queue.node_room import NodeRoom
from ridgeline.queue.outranking_rows import OutrankingRows
from ridgeline.queue.piece_bits import PieceBits, Thresholds, marks_of
from ridgeline.queue.waiting import Rank
from ridgeline.queue.wants import NodePiece, Wish

_SLIVER = 1e-5
"""Less of a GPU than any job asks for."""
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
        self._least = _Least([_weakest(self._rows.wish(row)) for row in range(len(self._rows))])
        self._vain = OutrankingRows(len(self._rows))
        """Rows whose first job tried in vain."""
        self._ranks = np.zeros((0, len(self._rows)))
        self._again: list[int] = []
        """Rows that may try again, the first in rank at the end; some may no more."""
        self._may = 0
        """The bits of those that may."""
        self._unsorted = False
        """Whether a node has gained since those were found."""
        self._gained: dict[int, _Gain] = {}
        """Nodes that came within somebody's reach since all tried in vain who could gain by it."""

    def add(self, job: int, wish: Wish, rank: Rank) -> None:
        """Let a job wait, and try if nobody who asks alike is before it."""
        row = self._rows.add(wish)
        if not len(self._ranks):
            self._ranks = np.zeros((len(rank) + 1, len(self._rows)))
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
        may = self._may_try_again(faded) if self._gained else 0
        if not self._unsorted:  # who is newly said to gain had as much within reach before
            may &= self._may
        self._may = may
        if not may:
            self._gained.clear()
            return self._who(self._in_turn[0][2]) if self._in_turn else None
        if self._unsorted:
            self._unsorted = False
            rows = np.flatnonzero(marks_of(may, len(self._rows)))
            self._again = rows[np.lexsort(self._ranks[::-1, rows])][::-1].tolist()
        while not may >> self._again[-1] & 1:
            self._again.pop()
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
        nodes = [node for node, gain in self._gained.items() if gain.rows >> row & 1]
        return self.nodes.victims(wish, below, nodes)

    def take(self, wish: Wish) -> None:
        """Remove the first of those that ask for this; the next may try."""
        row = self._rows.row(wish)
        heapq.heappop(self._waiting[row])
        self._rows.drop(wish)
        if row in self._new:
            self._new.discard(row)
        else:
            self._vain.remove(row)
        if self._waiting[row]:
            self._let_try(row)
        else:
            del self._waiting[row]

    def give_up(self, wish: Wish, below: float) -> None:
        """Let those that ask for this try no more for now; the first outranks what is below."""
        row = self._rows.row(wish)
        if row in self._new:
            self._new.discard(row)
        else:
            self._vain.remove(row)
        self._vain.add(row, below)
        for gain in self._gained.values():
            gain.rows &= ~(1 << row)
        self._ranks[:, row] = self._waiting[row][0][0]

    def all_may_try(self) -> None:
        """Let everyone try again: nodes failed, or came back."""
        self.nodes.forget_reach()
        for row in np.flatnonzero(marks_of(self._vain.bits(), len(self._rows))).tolist():
            self._vain.remove(row)
            self._let_try(row)

    def reached(self, held: DetailedHeld, last: float, faded: float) -> None:
        """Let those try again for whom a node could be enough of which these pieces are part.

        They were given back, or their job has another rank now. `last` is the last in order of the
        jobs that held them: whoever outranks it had them within reach before.
        """
        rows = self._vain.not_outranking(last + faded + (2 * _SLACK_SECONDS if faded else 0.0))
        self._unsorted = True
        for node, _ in held:
            gain = self._gained.setdefault(node, _Gain())
            gain.rows |= rows

    def _may_try_again(self, faded: float) -> int:
        """The bits of rows that tried in vain for which a node could be enough that gained since.

        Of those that outrank nobody, only they that fit.
        """
        found = 0
        slack = _SLACK_SECONDS if faded else 0.0
        for node, gain in self._gained.items():
            amounts, numbers = self.nodes.reach(node)
            if gain.amounts is not amounts:
                outranking = [self._vain.outranking(one + faded - slack) for one in numbers]
                gain.useful = self._least.within(self._pool.rooms[node], amounts, outranking)
                gain.amounts = amounts
            found |= gain.rows & gain.useful
        found &= self._vain.bits()
        fitting = found & ~self._vain.outranking(self.nodes.lowest() + faded - slack)
        if fitting:
            found &= ~fitting | self._rows.fitting(fitting)
        return found

    def _who(self, row: int) -> tuple[int, Wish]:
        return self._waiting[row][0][1], self._rows.wish(row)

    def _let_try(self, row: int) -> None:
        self._new.add(row)
        rank, job = self._waiting[row][0]
        heapq.heappush(self._in_turn, (rank, job, row))


@dataclass(slots=True)
class _Gain:
    """More of a node has come within reach."""

    rows: int = 0
    """The bits of those that have not tried since and could not reach it before."""
    useful: int = 0
    """The bits of those that the node could be of use to."""
    amounts: Sequence[Amounts] | None = None
    """What was within reach when that was found."""


class _Least:
    """The least that a node must have for it to be of any use to each row."""

    def __init__(self, pieces: Sequence[NodePiece]) -> None:
        self._bits = PieceBits(pieces)
        self._asked = [
            Thresholds([one.gpus + one.milli / 1000 + (_SLIVER if one.gpu_slice else 0.0)
                        - _SLIVER / 2 for one in pieces]),
            Thresholds([one.cpu_milli for one in pieces]),
            Thresholds([one.memory_bytes for one in pieces]),
        ]  # fmt: skip

    def within(self, room: NodeRoom, reach: Sequence[Amounts], outranking: Sequence[int]) -> int:
        """The bits of rows to which a node could be of use.

        Args:
            room: The node.
            reach: What is free of it, that and what the first of its jobs holds, and so on.
            outranking: The bits of the rows that outrank the first of its jobs, the second, and so
                on.
        """
        found = 0
        admitted = self._bits.admitted_by(room)
        for place, amounts in enumerate(reach):
            rows = outranking[place - 1] if place else admitted
            if place and place < len(outranking) and outranking[place] == rows:
                continue  # they have the next one's within reach, too
            rows &= admitted & ~found
            if not rows:
                if place:
                    break
                continue
            for asked, amount in zip(self._asked, amounts, strict=True):
                rows &= asked.up_to(amount)
            found |= rows
        return found


def _weakest(wish: Wish) -> NodePiece:
    """The piece that a node must hold for it to be of any use to a job."""
    found = wish.single or wish.rest or wish.full
    return found if found is not None else NodePiece(gpus=0)
