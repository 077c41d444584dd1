"""What an order and a batching mode answer."""

from __future__ import annotations

from typing import Protocol

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.sequence import Sequence

Rank = tuple[int, ...]
"""Lower goes first; equal ranks keep their order."""


class Ordering(Protocol):
    """Stateless: ranks are functions of a sequence."""

    settled: bool
    """Whether the rank of one who waits never changes."""

    def waiting_rank(self, sequence: Sequence, cache: BlockCache, /) -> Rank:
        """For the queue: the lowest is admitted next."""
        ...

    def running_rank(self, sequence: Sequence) -> Rank:
        """For those who run: the highest is preempted first."""
        ...


class Mode(Protocol):
    """Asked at every step; told of every admission and preemption."""

    def seats(self, running: int, waiting: list[Sequence], now: float, /) -> int:
        """How many may be admitted now."""
        ...

    def admitted(self) -> None:
        """A seat was taken."""
        ...

    def preempted(self) -> None:
        """One who had a seat waits again."""
        ...

    def starts_at(self, waiting: list[Sequence], /) -> float | None:
        """When a batch starts though nobody new comes; None: no clock decides."""
        ...
