"""The rows of waiting jobs that tried in vain, as one table that is changed in place.

A row is looked at again only for nodes of which more came within its reach since it was last known
that none is enough. Most nodes are no use to most rows even with all that any of them outranks;
that is one comparison for all rows, and only who is left is asked what is within its own reach.
The table is in the order of rank, so that who is found needs no sorting.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.contended import ContendedNodes
from ridgeline.queue.holding_rows import HoldingRows
from ridgeline.queue.node_room import NodeRoom
from ridgeline.queue.piece_bits import PieceBits, marks_of
from ridgeline.queue.waiting import Rank
from ridgeline.queue.wants import NodePiece

Floats = NDArray[np.float64]
_SLIVER = 1e-5
"""Less of a GPU than any job asks for."""
_COLUMNS = 64


@dataclass(frozen=True, slots=True)
class NodeGain:
    """More of a node has come within reach."""

    number: int
    """How many gains there had been, with this one."""
    last: float
    """The last in order of the jobs that held it: who outranks that had it within reach before."""


class VainRows:
    """Who tried in vain, what each asks of a node at least, and whom it outranks.

    Args:
        rooms: The nodes, as they are from now on.
        nodes: The jobs that run there.
        holding: Which rows there is room for.
        pieces: The least that a node must hold for it to be of any use to each row.
    """

    def __init__(
        self, rooms: Sequence[NodeRoom], nodes: ContendedNodes, holding: HoldingRows,
        pieces: Sequence[NodePiece],
    ) -> None:  # fmt: skip
        self._rooms, self._nodes, self._holding = rooms, nodes, holding
        self._bits = PieceBits(pieces)
        self._admitted: dict[tuple[str, bool], NDArray[np.bool_]] = {}
        """By kind of GPU, and whether it is spot capacity: who may have such a node."""
        self._asked = [_least_of(piece) for piece in pieces]
        self._ranks: list[Rank] = []
        """In order; a rank has its column of the table."""
        self._rank_of: dict[int, Rank] = {}
        """By row."""
        self._row = np.zeros(0, dtype=np.int64)
        self._numbers = np.zeros((5, 0))
        """How many gains there had been when it was last known that no node is enough; the number
        below which running jobs are ordered that the row outranks; GPUs, cores and memory."""

    def __contains__(self, row: int) -> bool:
        return row in self._rank_of

    def rows(self) -> list[int]:
        """All of them, the smallest first."""
        return sorted(self._rank_of)

    def add(self, row: int, rank: Rank, below: float, gains: int) -> None:
        """Note that the first of a row, of this rank, tried in vain after so many gains."""
        self.drop(row)
        count, place = len(self._ranks), bisect_left(self._ranks, rank)
        if count == len(self._row):
            self._grow()
        self._row[place + 1 : count + 1] = self._row[place:count]
        self._numbers[:, place + 1 : count + 1] = self._numbers[:, place:count]
        self._row[place], self._numbers[:, place] = row, (gains, below, *self._asked[row])
        self._ranks.insert(place, rank)
        self._rank_of[row] = rank

    def drop(self, row: int) -> None:
        """Let a row be one of them no longer."""
        rank = self._rank_of.pop(row, None)
        if rank is None:
            return
        count, place = len(self._ranks), bisect_left(self._ranks, rank)
        self._row[place : count - 1] = self._row[place + 1 : count]
        self._numbers[:, place : count - 1] = self._numbers[:, place + 1 : count]
        del self._ranks[place]

    def below(self, row: int) -> float:
        """The number below which running jobs are ordered that the first of a row outranks."""
        return float(self._numbers[1, bisect_left(self._ranks, self._rank_of[row])])

    def in_reach(
        self, gained: Mapping[int, NodeGain], gains: int, faded: float, slack: float
    ) -> list[int]:
        """The rows that could use a node that gained, in order.

        Who could not is not asked again about these gains, of which there were so many. Of those
        that outrank nobody, only they that fit. All ranks have fallen by `faded`, and may be taken
        too high by `slack`.
        """
        count = len(self._ranks)
        seen, below = self._numbers[:2, :count]
        if faded:
            below = below - faded + slack
        rows, outranks = self._row[:count], below > self._nodes.lowest()
        found = np.zeros(count, dtype=bool)
        outranking = outranks.nonzero()[0]
        if len(outranking) < count:
            found = self._holding.having_room(rows) & ~outranks
        if len(outranking):
            last = int(outranking[-1]) + 1  # whoever outranks somebody is before who does not
            able = self._able(gained, seen[:last], below[:last], 2 * slack)
            found[:last] |= able & outranks[:last]
        seen[~found] = gains
        may: list[int] = rows[found].tolist()
        return may

    def _able(
        self, gained: Mapping[int, NodeGain], seen: Floats, below: Floats, slack: float
    ) -> NDArray[np.bool_]:
        """Which of the first rows could use a node that gained."""
        asked, rows = self._numbers[2:, : len(seen)], self._row[: len(seen)]
        found = np.zeros(len(seen), dtype=bool)
        for node, gain in gained.items():
            given, first = self._nodes.within_reach(node)
            enough = given.take(first.searchsorted(below), axis=1) >= asked
            able = enough[0] & enough[1] & enough[2] & (seen < gain.number)
            able &= self._admitting(self._rooms[node]).take(rows)
            if gain.last + slack < below[0]:
                able &= below <= gain.last + slack
            found |= able
        return found

    def is_within(self, node: int, below: float, row: int) -> bool:
        """Whether a node could be of use to one row that outranks what is below a number."""
        gpus, cpu_milli, memory_bytes = self._asked[row]
        amounts = self._nodes.amounts(node, below)
        return bool(
            amounts[0] >= gpus and amounts[1] >= cpu_milli and amounts[2] >= memory_bytes
            and self._admitting(self._rooms[node])[row]
        )  # fmt: skip

    def _admitting(self, room: NodeRoom) -> NDArray[np.bool_]:
        key = (room.gpu_type, room.spot)
        if key not in self._admitted:
            self._admitted[key] = marks_of(self._bits.admitted_by(room), len(self._asked))
        return self._admitted[key]

    def _grow(self) -> None:
        more = max(_COLUMNS, len(self._row))
        self._row = np.concatenate([self._row, np.zeros(more, dtype=np.int64)])
        self._numbers = np.hstack([self._numbers, np.zeros((5, more))])


def _least_of(piece: NodePiece) -> tuple[float, float, float]:
    """GPUs, cores and memory that a node must have for a piece."""
    gpus = piece.gpus + piece.milli / 1000 + (_SLIVER if piece.gpu_slice else 0.0) - _SLIVER / 2
    return gpus, piece.cpu_milli, piece.memory_bytes
