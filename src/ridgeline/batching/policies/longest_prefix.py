"""Whoever finds most of its prompt in the cache first, before its blocks are overwritten.

The order of SGLang's `lpm` (Zheng et al., 2312.07104, section 3). Prompts that share nothing starve
while others that do keep coming. What is known changes with every step, so the queue is sorted
whenever a seat is free: one look-up per block of every prompt that waits.
"""

from __future__ import annotations

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.sequence import Sequence


class LongestPrefix:
    """By cached tokens, then by arrival."""

    settled = False

    def waiting_rank(self, sequence: Sequence, cache: BlockCache) -> tuple[int, ...]:
        """Preempted ones, then by how much is known."""
        fresh = sequence.scheduled_at is None
        return (fresh, -len(cache.known(sequence)) if fresh else 0, sequence.serial)

    def running_rank(self, sequence: Sequence) -> tuple[int, ...]:
        """By arrival: who came last has the least to lose."""
        return (sequence.serial,)
