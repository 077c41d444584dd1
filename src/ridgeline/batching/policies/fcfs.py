"""First come, first served. Nobody starves: whoever came before is served before.

A sequence that was preempted came before all who wait, so it is in front of them again; the newest
is preempted. The queue never overtakes its head, even where a shorter prompt would fit.
"""

from __future__ import annotations

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.sequence import Sequence


class FirstCome:
    """By arrival at the scheduler."""

    settled = True

    def waiting_rank(self, sequence: Sequence, _cache: BlockCache) -> tuple[int, ...]:
        """By arrival."""
        return (sequence.serial,)

    def running_rank(self, sequence: Sequence) -> tuple[int, ...]:
        """By arrival."""
        return (sequence.serial,)
