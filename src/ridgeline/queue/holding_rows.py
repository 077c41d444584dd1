"""Where there is room for what jobs wait for, known while nodes change.

Thousands of jobs may wait that ask for thousands of things, so that asking the pool for each at
every event is out of the question. Instead each thing has a row, which is a bit. What a node holds
is a number with the bits of those rows, and a tree over the nodes has in its root what any of them
holds: a node that changes changes one path of it. Where several nodes are asked for, those that
hold a piece are counted. Jobs that ask alike share a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.node_room import NodeRoom
from ridgeline.queue.piece_bits import PieceBits, bits_of, marks_of
from ridgeline.queue.wants import NodePiece, Wish


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
        self._tree = _Union(pool, [_first_piece(wish) for wish in self._wishes])
        many = [row for row, wish in enumerate(self._wishes) if _num_nodes(wish) > 1]
        scattering = [row for row, wish in enumerate(self._wishes) if _scatters(wish)]
        self._on_one = bits_of(np.array([_num_nodes(wish) == 1 for wish in self._wishes]))
        self._many = _SeveralNodes(pool, self._wishes, many)
        self._singles = _SingleGpus(pool, self._wishes, scattering)
        self._seen = 0
        """How many of the pool's changes have been counted."""

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

    def may_fit(self) -> int:
        """The bits of rows that there may be room for; `fits` says whether there is."""
        if not self._asked:
            return 0
        self._sync()
        return self._asked & (
            (self._tree.bits() & self._on_one) | self._many.bits() | self._singles.bits()
        )

    def marks(self) -> NDArray[np.bool_]:
        """The same for each row."""
        return marks_of(self.may_fit(), len(self._wishes))

    def fits(self, row: int) -> bool:
        """Whether there is room for one that may fit, now that nothing has changed."""
        if self._many.counts_tell(row) or self._pool.fits(self._wishes[row]):
            return True
        self._many.refuse(row)
        return False

    def has_room(self, wish: Wish) -> bool:
        """Whether there is room for one that waits."""
        row = self._row_of[wish]
        return bool(self.may_fit() >> row & 1) and self.fits(row)

    def row(self, wish: Wish) -> int:
        """The row of what somebody asks for."""
        return self._row_of[wish]

    def wish(self, row: int) -> Wish:
        """What is asked for in a row."""
        return self._wishes[row]

    def _sync(self) -> None:
        changes = self._pool.changes
        if self._seen == len(changes):
            return
        changed = dict.fromkeys(changes[self._seen :])
        self._seen = len(changes)
        for counted in (self._tree, self._many, self._singles):
            counted.sync(changed)


class _Union:
    """What any node holds, as the root of a tree over what each holds."""

    def __init__(self, pool: DetailedPool, pieces: Sequence[NodePiece]) -> None:
        self._rooms = pool.rooms
        self._pieces = PieceBits(pieces)
        self._first = 1 << (len(pool.rooms) - 1).bit_length()
        """The place of the first leaf; the parent of a place is at its half."""
        self._bits = [0] * (2 * self._first)
        self.sync(range(len(pool.rooms)))

    def bits(self) -> int:
        """The bits of what any node holds."""
        return self._bits[1]

    def sync(self, changed: Iterable[int]) -> None:
        """Ask nodes that have changed again."""
        bits, rooms, first = self._bits, self._rooms, self._first
        for node in changed:
            place = first + node
            found = self._pieces.held_by(rooms[node])
            while found != bits[place]:
                bits[place] = found
                if place == 1:
                    break
                found |= bits[place ^ 1]
                place >>= 1


class _SeveralNodes:
    """How many nodes hold the pieces of jobs that need more than one of them.

    Whole nodes and a rest are two pieces, of which each must have nodes enough. Where all must lie
    in one domain, the pool is asked as well, until it refuses.
    """

    def __init__(self, pool: DetailedPool, wishes: Sequence[Wish], rows: Sequence[int]) -> None:
        self._rooms = pool.rooms
        self._rows = np.array(rows, dtype=np.int64)
        self._num_rows = len(wishes)
        self._place_of = {row: place for place, row in enumerate(rows)}
        whole, rest, needed = [], [], []
        for row in rows:
            wish = wishes[row]
            assert wish.full is not None, "only jobs of whole nodes need several"
            whole.append(wish.full)
            rest.append(wish.rest or wish.full)
            needed.append((wish.num_full, wish.num_full + (wish.rest is not None)))
        self._pieces = PieceBits([*whole, *rest])
        self._needed = np.array(needed, dtype=np.int64).T.ravel()
        self._count = np.zeros(2 * len(rows), dtype=np.int64)
        self._exact = np.array(
            [wishes[row].level == "node" or not wishes[row].required for row in rows], dtype=bool
        )
        self._open = np.ones(len(rows), dtype=bool)
        """Rows that were not refused since another node came to hold what they ask for."""
        self._held = [0] * len(pool.rooms)
        self._bits: int | None = None
        if rows:
            self.sync(range(len(pool.rooms)))

    def bits(self) -> int:
        """The bits of rows for which there are nodes enough."""
        if self._bits is None:
            whole, rest = (self._count >= self._needed).reshape(2, -1)
            enough = np.flatnonzero(whole & rest & (self._exact | self._open))
            self._bits = _bits_at(self._rows[enough], self._num_rows)
        return self._bits

    def counts_tell(self, row: int) -> bool:
        """Whether the counts alone tell that there is room."""
        place = self._place_of.get(row)
        return place is None or bool(self._exact[place])

    def refuse(self, row: int) -> None:
        """Say no of a row until another node holds what it asks for."""
        self._open[self._place_of[row]] = False
        self._bits = None

    def sync(self, changed: Iterable[int]) -> None:
        """Count nodes that have changed again."""
        if not len(self._rows):
            return
        for node in changed:
            found, before = self._pieces.held_by(self._rooms[node]), self._held[node]
            if found == before:
                continue
            self._held[node] = found
            gained = marks_of(found & ~before, len(self._count))
            self._count += gained
            self._count -= marks_of(before & ~found, len(self._count))
            self._open |= gained.reshape(2, -1).any(axis=0)
            self._bits = None


class _SingleGpus:
    """How many single GPUs all nodes together have for jobs that take them anywhere."""

    def __init__(self, pool: DetailedPool, wishes: Sequence[Wish], rows: Sequence[int]) -> None:
        self._rooms = pool.rooms
        self._rows = np.array(rows, dtype=np.int64)
        self._num_rows = len(wishes)
        pieces = [one for row in rows if (one := wishes[row].single) is not None]
        self._pieces = PieceBits(pieces)
        asked = np.array([(one.cpu_milli, one.memory_bytes) for one in pieces]).T
        self._unasked = np.where(asked > 0, 0.0, np.inf)
        self._divisors = np.maximum(asked, 1).astype(np.float64)
        self._admitted: dict[tuple[str, bool], NDArray[np.bool_]] = {}
        """By kind of GPU, and whether it is spot capacity: who may have such a node."""
        self._wanted = np.array([wishes[row].gpus for row in rows], dtype=np.int64)
        self._total = np.zeros(len(rows), dtype=np.int64)
        self._there: list[NDArray[np.int64] | None] = [None] * len(pool.rooms)
        """How many GPUs of a node each could have; None: nobody has any."""
        self._bits: int | None = None
        if rows:
            self.sync(range(len(pool.rooms)))

    def bits(self) -> int:
        """The bits of rows for which there are GPUs enough."""
        if self._bits is None:
            self._bits = _bits_at(self._rows[self._total >= self._wanted], self._num_rows)
        return self._bits

    def sync(self, changed: Iterable[int]) -> None:
        """Count GPUs of nodes that have changed again."""
        if not len(self._rows):
            return
        for node in changed:
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
            self._bits = None

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
