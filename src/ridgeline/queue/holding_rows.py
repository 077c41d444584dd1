"""Where there is room for what jobs wait for, known while nodes change.

Thousands of jobs may wait that ask for thousands of things, so that asking the pool for each at
every event is out of the question. Instead each thing has a row, which is a bit. What a node holds
is a number with the bits of those rows, and a tree over the nodes has in its root what any of them
holds: a node that changes changes one path of it. Where several nodes are asked for, those that
hold a piece are counted, in each domain where all must lie in one. Jobs that ask alike share a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.node_room import NodeRoom
from ridgeline.queue.piece_bits import PieceBits, bits_of, marks_of
from ridgeline.queue.wants import Level, NodePiece, Wish


class HoldingRows:
    """What waiting jobs ask for, a row each, and where there is room for it.

    Args:
        pool: The nodes.
        wishes: All that anybody will ask for, in the order that rows are to have.
    """

    def __init__(self, pool: DetailedPool, wishes: Iterable[Wish]) -> None:
        self._pool = pool
        self._wishes = list(dict.fromkeys(wishes))
        self._row_of = {wish: row for row, wish in enumerate(self._wishes)}
        self._users = [0] * len(self._wishes)
        self._asked = 0
        """The bits of rows that somebody uses."""
        many: dict[Level, list[int]] = {}
        for row, wish in enumerate(self._wishes):
            if _num_nodes(wish) > 1:
                many.setdefault(wish.level if wish.required else "node", []).append(row)
        scattering = [row for row, wish in enumerate(self._wishes) if _scatters(wish)]
        self._on_one = bits_of(np.array([_num_nodes(wish) == 1 for wish in self._wishes]))
        pieces = [_first_piece(wish) for wish in self._wishes]
        self._many = []
        for level, rows in many.items():
            counted = _SeveralNodes(
                len(pool.rooms), self._wishes, rows, _reaching(pool, level), len(pieces)
            )
            self._many.append(counted)
            pieces += counted.pieces
        self._pieces = PieceBits(pieces)
        """What is asked of a node for each row, then what each of `_many` counts."""
        self._tree = _Union(len(pool.rooms))
        self._scattering = bits_of(np.array([_scatters(wish) for wish in self._wishes]))
        self._singles = _SingleGpus(pool, self._wishes, scattering)
        self._seen = 0
        """How many of the pool's changes have been counted."""
        self._sync(range(len(pool.rooms)))

    def __len__(self) -> int:
        return len(self._wishes)

    def add(self, wish: Wish) -> int:
        """Count for one job more that asks for this, and say which row it has."""
        row = self._row_of[wish]
        self._users[row] += 1
        self._asked |= 1 << row
        return row

    def drop(self, wish: Wish) -> None:
        """Count for one job less."""
        row = self._row_of[wish]
        self._users[row] -= 1
        if not self._users[row]:
            self._asked ^= 1 << row

    def fitting(self) -> int:
        """The bits of rows that there is room for."""
        if not self._asked:
            return 0
        found = self._asked & self._compactly()
        if (self._asked ^ found) & self._scattering:
            found |= self._asked & self._singles.bits()
        return found

    def marks(self) -> NDArray[np.bool_]:
        """Whether there is room for each row, [rows]."""
        return marks_of(self.fitting(), len(self._wishes))

    def having_room(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of some rows there is room for."""
        fitting = self.fitting()
        if not fitting:
            return np.zeros(len(rows), dtype=bool)
        return marks_of(fitting, len(self._wishes))[rows]

    def has_room(self, wish: Wish) -> bool:
        """Whether there is room for one that waits."""
        row = self._row_of[wish]
        return bool(self._compactly() >> row & 1) or (
            self._singles.counts(row) and bool(self._singles.bits() >> row & 1)
        )

    def row(self, wish: Wish) -> int:
        """The row of what somebody asks for."""
        return self._row_of[wish]

    def wish(self, row: int) -> Wish:
        """What is asked for in a row."""
        return self._wishes[row]

    def _compactly(self) -> int:
        """The bits of rows that there are nodes for, whether somebody asks or not."""
        changes = self._pool.changes
        if self._seen < len(changes):
            changed = dict.fromkeys(changes[self._seen :])
            self._seen = len(changes)
            self._sync(changed)
        held = self._tree.bits() & self._on_one
        for many in self._many:
            held |= many.bits()
        return held

    def _sync(self, changed: Iterable[int]) -> None:
        """Ask nodes that have changed again."""
        for node in changed:
            held = self._pieces.held_by(self._pool.rooms[node])
            self._tree.note(node, held)
            for many in self._many:
                many.note(node, held)
        self._singles.sync(changed)


class _Union:
    """What any node holds, as the root of a tree over what each holds."""

    def __init__(self, num_nodes: int) -> None:
        self._first = 1 << (num_nodes - 1).bit_length()
        """The place of the first leaf; the parent of a place is at its half."""
        self._bits = [0] * (2 * self._first)

    def bits(self) -> int:
        """The bits of what any node holds."""
        return self._bits[1]

    def note(self, node: int, held: int) -> None:
        """Note what a node holds now."""
        bits, place = self._bits, self._first + node
        while held != bits[place]:
            bits[place] = held
            if place == 1:
                break
            held |= bits[place ^ 1]
            place >>= 1


class _SeveralNodes:
    """How many nodes of each domain hold the pieces of jobs that need more than one of them.

    Whole nodes and a rest are two pieces, of which each must have nodes enough in one domain. Their
    bits lie behind `offset` others in what a node holds.
    """

    def __init__(
        self, num_nodes: int, wishes: Sequence[Wish], rows: Sequence[int],
        domains: NDArray[np.int64], offset: int,
    ) -> None:  # fmt: skip
        self._rows = np.array(rows, dtype=np.int64)
        self._num_rows = len(wishes)
        whole, rest, needed = [], [], []
        for row in rows:
            wish = wishes[row]
            assert wish.full is not None, "only jobs of whole nodes need several"
            whole.append(wish.full)
            rest.append(wish.rest or wish.full)
            needed.append((wish.num_full, wish.num_full + (wish.rest is not None)))
        self.pieces: list[NodePiece] = [*whole, *rest]
        self._offset, self._mask = offset, (1 << len(self.pieces)) - 1
        counts = np.int16 if num_nodes < 2**15 else np.int32
        self._needed = np.array(needed, dtype=counts).T.ravel()
        self._domain_of = domains.tolist()
        num_domains = int(domains.max()) + 1
        self._count = np.zeros((num_domains, 2 * len(rows)), dtype=counts)
        self._enough_in = np.zeros(len(rows), dtype=np.int64)
        """How many domains have nodes enough."""
        self._held = [0] * num_nodes
        self._bits: int | None = None

    def bits(self) -> int:
        """The bits of rows for which there are nodes enough."""
        if self._bits is None:
            self._bits = _bits_at(self._rows[self._enough_in > 0], self._num_rows)
        return self._bits

    def note(self, node: int, held: int) -> None:
        """Count what a node holds now instead of what it held."""
        found, before = held >> self._offset & self._mask, self._held[node]
        if found == before:
            return
        self._held[node] = found
        count = self._count[self._domain_of[node]]
        self._enough_in -= self._enough(count)
        count += marks_of(found & ~before, len(count))
        count -= marks_of(before & ~found, len(count))
        self._enough_in += self._enough(count)
        self._bits = None

    def _enough(self, count: NDArray[Any]) -> NDArray[np.bool_]:
        """For which rows a domain has nodes enough."""
        whole, rest = (count >= self._needed).reshape(2, -1)
        return np.asarray(whole & rest)


class _SingleGpus:
    """How many single GPUs all nodes together have for jobs that take them anywhere."""

    def __init__(self, pool: DetailedPool, wishes: Sequence[Wish], rows: Sequence[int]) -> None:
        self._rooms = pool.rooms
        self._rows = np.array(rows, dtype=np.int64)
        self._counted = frozenset(rows)
        self._num_rows = len(wishes)
        pieces = [one for row in rows if (one := wishes[row].single) is not None]
        self._pieces = PieceBits(pieces)
        asked = np.array([(one.cpu_milli, one.memory_bytes) for one in pieces]).T
        self._unasked = np.where(asked > 0, 0.0, np.inf)
        self._divisors = np.maximum(asked, 1).astype(np.float64)
        self._admitted: dict[tuple[str, bool], NDArray[np.bool_]] = {}
        """By kind of GPU, and whether it is spot capacity: who may have such a node."""
        self._wanted = np.array([wishes[row].gpus for row in rows], dtype=np.int64)
        self._fewest = int(self._wanted.min(initial=2))
        self._whole = 0
        """Whole GPUs that are free on all nodes."""
        self._whole_on = [0] * len(pool.rooms)
        self._total = np.zeros(len(rows), dtype=np.int64)
        self._there: list[NDArray[np.int64] | None] = [None] * len(pool.rooms)
        """How many GPUs of a node each could have; None: nobody has any."""
        self._bits = 0
        self._stale: dict[int, None] = {}
        """Nodes whose GPUs are to be counted again."""
        self.sync(range(len(pool.rooms)))

    def counts(self, row: int) -> bool:
        """Whether GPUs are counted for a row."""
        return row in self._counted

    def bits(self) -> int:
        """The bits of rows for which there are GPUs enough."""
        if self._whole < self._fewest:
            return 0
        if self._stale:
            self._count()
            self._bits = _bits_at(self._rows[self._total >= self._wanted], self._num_rows)
        return self._bits

    def sync(self, changed: Iterable[int]) -> None:
        """Note that nodes have changed."""
        if not self._counted:
            return
        for node in changed:
            whole = self._rooms[node].whole
            self._whole += whole - self._whole_on[node]
            self._whole_on[node] = whole
            self._stale[node] = None

    def _count(self) -> None:
        for node in self._stale:
            room, before = self._rooms[node], self._there[node]
            if room.whole:
                found = self._there[node] = self._times_on(room)
                self._total += found
            elif before is None:
                continue
            else:
                self._there[node] = None
            if before is not None:
                self._total -= before
        self._stale.clear()

    def _times_on(self, room: NodeRoom) -> NDArray[np.int64]:
        """How many times a node holds each piece, as `NodeRoom.pieces_that_fit` says of one."""
        key = (room.gpu_type, room.spot)
        if key not in self._admitted:
            self._admitted[key] = marks_of(self._pieces.admitted_by(room), len(self._rows))
        times = np.full(len(self._rows), float(room.whole))
        for place, free in enumerate((room.cpu_milli, room.memory_bytes)):
            # Who asks for none of it is held by a node that has less than one left for each GPU.
            # Quotients are exact enough: amounts are whole numbers, and few GPUs are on a node.
            np.minimum(times, free / self._divisors[place] + self._unasked[place], out=times)
        return (times * self._admitted[key]).astype(np.int64)


def _first_piece(wish: Wish) -> NodePiece:
    return wish.pieces()[0][0]


def _reaching(pool: DetailedPool, level: Level) -> NDArray[np.int64]:
    """The domain of each node, within which all nodes of a job must lie; anywhere is one domain."""
    return np.zeros(len(pool.rooms), dtype=np.int64) if level == "node" else pool.domains(level)


def _num_nodes(wish: Wish) -> int:
    return sum(times for _, times in wish.pieces())


def _bits_at(rows: NDArray[np.int64], count: int) -> int:
    """The bits of some of so many rows, together."""
    marks = np.zeros(count, dtype=bool)
    marks[rows] = True
    return bits_of(marks)


def _scatters(wish: Wish) -> bool:
    """Whether GPUs that lie apart would do where one node or whole ones would not."""
    return wish.level == "node" and wish.single is not None and wish.gpus > 1
