"""`Request.priority` first, lower before higher; by arrival among equals.

Low urgency starves for as long as more urgent requests fill the engine: that is what was asked
for. Whoever runs is only preempted when blocks run out, the least urgent first and of those the
newest; nobody is thrown out merely because someone more urgent waits.
"""

from __future__ import annotations

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.sequence import Sequence


class Priority:
    """By priority, then by arrival."""

    settled = True

    def waiting_rank(self, sequence: Sequence, _cache: BlockCache) -> tuple[int, ...]:
        """By priority."""
        return (sequence.request.priority, sequence.serial)

    def running_rank(self, sequence: Sequence) -> tuple[int, ...]:
        """By priority."""
        return (sequence.request.priority, sequence.serial)
