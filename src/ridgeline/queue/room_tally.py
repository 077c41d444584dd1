"""Whether one job would fit if others gave back what they hold, counted where something changes.

To spare whom a job does not need, it is asked once for each of those that it might interrupt. What
nodes hold of it is counted once, and of a node again when a job gives something back there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.detailed_pool import DetailedHeld, DetailedPool, retake
from ridgeline.queue.node_room import NodeRoom
from ridgeline.queue.wants import Wish


class RoomTally:
    """How many nodes, in each domain, would hold the pieces of a job."""

    def __init__(self, pool: DetailedPool, wish: Wish) -> None:
        self._pool, self._wish = pool, wish
        self._whole = next(piece for piece, _ in wish.pieces())
        self._rest = wish.rest or self._whole
        whole = wish.num_full or 1
        self._needed = whole, wish.num_full + (wish.rest is not None)
        self._rooms: dict[int, NodeRoom] = {}
        domain = np.zeros(len(pool.rooms), dtype=np.int64)
        if wish.required and wish.level != "node":
            domain = pool.domains(wish.level)
        self._domain = domain
        holding = pool.counts(self._whole) > 0
        either = holding | (pool.counts(self._rest) > 0)
        self._counts = [_by_domain(domain, one) for one in (holding, either)]
        """How many nodes of each domain hold a whole piece, and how many that or the rest."""
        self._enough = sum(self._has_enough(place) for place in range(len(self._counts[0])))
        """How many domains have nodes enough."""
        self._gpus = 0
        """How many GPUs it could have that lie anywhere."""
        if wish.single is not None:
            self._gpus = int(pool.counts(wish.single, single=True).sum())

    def fits(self) -> bool:
        """Whether the job could start."""
        if self._enough:
            return True
        return self._wish.single is not None and self._gpus >= self._wish.gpus

    def change(self, held: DetailedHeld, sign: int) -> None:
        """Add what a job holds, or take it away again."""
        for node, placed in held:
            room = self._rooms.get(node)
            if room is None:
                room = self._rooms[node] = self._pool.rooms[node].copy()
            before = self._held_by(room)
            if sign > 0:
                room.give(placed.piece, (placed.gpu, placed.slots))
            else:
                retake(room, placed)
            self._count(int(self._domain[node]), before, self._held_by(room))

    def _count(
        self, domain: int, before: tuple[bool, bool, int], after: tuple[bool, bool, int]
    ) -> None:
        if before == after:
            return
        self._gpus += after[2] - before[2]
        self._enough -= self._has_enough(domain)
        for place, counted in enumerate(self._counts):
            counted[domain] += after[place] - before[place]
        self._enough += self._has_enough(domain)

    def _has_enough(self, domain: int) -> bool:
        return all(
            counted[domain] >= needed
            for counted, needed in zip(self._counts, self._needed, strict=True)
        )

    def _held_by(self, room: NodeRoom) -> tuple[bool, bool, int]:
        """Whether a node holds a whole piece, that or the rest, and how many single GPUs."""
        holds = room.holds(self._whole)
        single = self._wish.single
        return (
            holds,
            holds or (self._rest is not self._whole and room.holds(self._rest)),
            room.pieces_that_fit(single) if single is not None else 0,
        )


def _by_domain(domain: NDArray[np.int64], nodes: NDArray[np.bool_]) -> list[int]:
    found: list[int] = np.bincount(domain[nodes], minlength=int(domain.max()) + 1).tolist()
    return found
