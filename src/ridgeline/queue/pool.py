"""Free GPUs, as one pool that only counts, or nodes on which whole GPUs are placed.

A job of more GPUs than a node has takes whole nodes and the rest on one more. Both kinds are
monotone: where a job fits, a smaller one fits too. `detailed_pool.py` has a third kind, whose nodes
differ in more than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

PlacementName = Literal["pack", "spread"]
Held: TypeAlias = list[tuple[int, Any]]
"""Which nodes a job holds something of, and what of each: of a pool that counts, how many GPUs."""
Asked: TypeAlias = Any
"""What a job asks of its pool: a number of GPUs where the pool counts, else a `Wish`."""


class GpuPool(Protocol):
    """Where GPUs are taken from and given back to."""

    gpus: float
    """All GPUs that there are."""
    free: float
    """How many nobody holds."""

    def fits(self, asked: Asked) -> bool:
        """Whether a job that asks for so much could start now."""

    def take(self, asked: Asked) -> Held:
        """Give GPUs to a job that fits."""

    def give(self, held: Held) -> None:
        """Take back what a job held."""

    def imagined(self) -> ImaginedRoom:
        """What is free now, to try what would be free; the pool stays as it is."""


class ImaginedRoom(Protocol):
    """What would be free if jobs gave back what they hold."""

    def fits(self, asked: Asked) -> bool:
        """Whether a job that asks for so much could start then."""

    def change(self, held: Held, sign: int) -> None:
        """Add the GPUs of a job (sign 1), or take them away again (-1)."""


class CountedPool:
    """GPUs that are all alike and all near each other."""

    def __init__(self, gpus: int) -> None:
        self.gpus: float = gpus
        self.free: float = gpus

    def fits(self, asked: int) -> bool:
        """Whether so many are free."""
        return asked <= self.free

    def take(self, asked: int) -> Held:
        """Hand out GPUs, which have no place."""
        self.free -= asked
        return [(0, asked)]

    def give(self, held: Held) -> None:
        """Take so many GPUs back."""
        self.free += held[0][1]

    def imagined(self) -> ImaginedRoom:
        """Another pool with as many free."""
        return _ImaginedCount(self.free)


class _ImaginedCount:
    def __init__(self, free: float) -> None:
        self.free = free

    def fits(self, asked: int) -> bool:
        return asked <= self.free

    def change(self, held: Held, sign: int) -> None:
        self.free += sign * held[0][1]


class NodePool:
    """Nodes with whole GPUs, in buckets by how many of theirs are free.

    `pack` takes the node with the fewest free GPUs that are enough (best fit); `spread` takes the
    one with the most, as the scoring LeastAllocated of kube-scheduler does.
    """

    def __init__(self, sizes: Sequence[int], placement: PlacementName = "pack") -> None:
        self.sizes = tuple(sizes)
        self.largest = max(self.sizes)
        self.placement = placement
        self.gpus: float = sum(self.sizes)
        self.free: float = self.gpus
        self.free_of = list(self.sizes)
        # A dict keeps the order of insertion, so that runs are repeatable.
        self._with_free: list[dict[int, None]] = [{} for _ in range(self.largest + 1)]
        for node, size in enumerate(self.sizes):
            self._with_free[size][node] = None
        self._counts = [len(nodes) for nodes in self._with_free]

    def fits(self, asked: int) -> bool:
        """Whether the whole nodes and the rest can be had."""
        return asked <= self.free and _have_room(self._counts, asked)

    def take(self, asked: int) -> Held:
        """Hand out whole nodes, then the rest where the placement says."""
        whole, rest = divmod(asked, self.largest)
        held: Held = []
        for _ in range(whole):
            node = next(iter(self._with_free[self.largest]))
            held.append((node, self.largest))
            self._move(node, -self.largest)
        if rest:
            node = self._node_for(rest)
            held.append((node, rest))
            self._move(node, -rest)
        return held

    def give(self, held: Held) -> None:
        """Take GPUs back to their nodes."""
        for node, count in held:
            self._move(node, count)

    def with_free(self) -> list[int]:
        """How many nodes have 0, 1, 2 … GPUs free."""
        return self._counts

    def imagined(self) -> ImaginedRoom:
        """How many nodes have how many free."""
        return _ImaginedNodes(self.free_of, self._counts)

    def close(self, node: int) -> None:
        """Take a node out whose GPUs are all free: it has failed."""
        self._move(node, -self.sizes[node])
        del self._with_free[0][node]
        self._counts[0] -= 1
        self.gpus -= self.sizes[node]

    def reopen(self, node: int) -> None:
        """Take a mended node back."""
        self._with_free[0][node] = None
        self._counts[0] += 1
        self._move(node, self.sizes[node])
        self.gpus += self.sizes[node]

    def _node_for(self, rest: int) -> int:
        order: Iterable[int] = range(rest, self.largest + 1)
        if self.placement == "spread":
            order = range(self.largest, rest - 1, -1)
        return next(iter(next(self._with_free[free] for free in order if self._with_free[free])))

    def _move(self, node: int, change: int) -> None:
        before = self.free_of[node]
        del self._with_free[before][node]
        self.free_of[node] = before + change
        self._with_free[before + change][node] = None
        self._counts[before] -= 1
        self._counts[before + change] += 1
        self.free += change


class _ImaginedNodes:
    def __init__(self, free_of: Sequence[int], counts: Sequence[int]) -> None:
        self._free_of, self._counts = free_of, list(counts)
        self._changed: dict[int, int] = {}

    def fits(self, asked: int) -> bool:
        return _have_room(self._counts, asked)

    def change(self, held: Held, sign: int) -> None:
        for node, count in held:
            before = self._changed.get(node, self._free_of[node])
            after = self._changed[node] = before + sign * count
            self._counts[before] -= 1
            self._counts[after] += 1


def _have_room(counts: Sequence[int], size: int) -> bool:
    """Whether nodes hold a job, given how many nodes have 0, 1, 2 … GPUs free."""
    largest = len(counts) - 1
    whole, rest = divmod(size, largest)
    empty = counts[largest]
    if whole > empty:
        return False
    return not rest or empty > whole or any(counts[rest:largest])
