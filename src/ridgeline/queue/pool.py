"""Free GPUs, as one pool that only counts, or nodes on which whole GPUs are placed.

A job of more GPUs than a node has takes whole nodes and the rest on one more. Both kinds are
monotone: where a job fits, a smaller one fits too; the policies rest on that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

PlacementName = Literal["pack", "spread"]
Held = list[tuple[int, int]]
"""Which nodes a job holds GPUs of, and how many of each."""


class GpuPool(Protocol):
    """Where GPUs are taken from and given back to."""

    gpus: int
    """All GPUs that there are."""
    free: int
    """How many nobody holds."""

    def fits(self, size: int) -> bool:
        """Whether a job of `size` GPUs could start now."""

    def take(self, size: int) -> Held:
        """Give GPUs to a job that fits."""

    def retake(self, held: Held) -> None:
        """Give the very same GPUs again, after a `give` that is undone."""

    def give(self, held: Held) -> None:
        """Take back what a job held."""


class CountedPool:
    """GPUs that are all alike and all near each other."""

    def __init__(self, gpus: int) -> None:
        self.gpus = self.free = gpus

    def fits(self, size: int) -> bool:
        """Whether so many are free."""
        return size <= self.free

    def take(self, size: int) -> Held:
        """Hand out GPUs, which have no place."""
        self.free -= size
        return [(0, size)]

    def retake(self, held: Held) -> None:
        """Hand the same number out again."""
        self.free -= held[0][1]

    def give(self, held: Held) -> None:
        """Take so many GPUs back."""
        self.free += held[0][1]


class NodePool:
    """Nodes with whole GPUs, in buckets by how many of theirs are free.

    `pack` takes the node with the fewest free GPUs that are enough (best fit); `spread` takes the
    one with the most, as the scoring LeastAllocated of kube-scheduler does.
    """

    def __init__(self, sizes: Sequence[int], placement: PlacementName = "pack") -> None:
        self.sizes = tuple(sizes)
        self.largest = max(self.sizes)
        self.placement = placement
        self.gpus = self.free = sum(self.sizes)
        self.free_of = list(self.sizes)
        # A dict keeps the order of insertion, so that runs are repeatable.
        self._with_free: list[dict[int, None]] = [{} for _ in range(self.largest + 1)]
        for node, size in enumerate(self.sizes):
            self._with_free[size][node] = None

    def fits(self, size: int) -> bool:
        """Whether the whole nodes and the rest can be had."""
        if size > self.free:
            return False
        whole, rest = divmod(size, self.largest)
        empty = len(self._with_free[self.largest])
        if whole > empty:
            return False
        if not rest or empty > whole:
            return True
        return any(self._with_free[free] for free in range(rest, self.largest))

    def take(self, size: int) -> Held:
        """Hand out whole nodes, then the rest where the placement says."""
        whole, rest = divmod(size, self.largest)
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

    def retake(self, held: Held) -> None:
        """Hand out the same GPUs of the same nodes."""
        for node, count in held:
            self._move(node, -count)

    def give(self, held: Held) -> None:
        """Take GPUs back to their nodes."""
        for node, count in held:
            self._move(node, count)

    def close(self, node: int) -> None:
        """Take a node out whose GPUs are all free: it has failed."""
        self._move(node, -self.sizes[node])
        del self._with_free[0][node]
        self.gpus -= self.sizes[node]

    def reopen(self, node: int) -> None:
        """Take a mended node back."""
        self._with_free[0][node] = None
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
        self.free += change
