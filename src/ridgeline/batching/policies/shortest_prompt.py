"""Short prompts first: the least mean time to the first token, as shortest-job-first has it.

Long prompts starve while shorter ones keep coming. Preempted sequences go before all others: they
were promised a place, and each wait costs a computation again.
"""

from __future__ import annotations

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.sequence import Sequence


class ShortestPrompt:
    """By the prompt's length, then by arrival."""

    settled = True

    def waiting_rank(self, sequence: Sequence, _cache: BlockCache) -> tuple[int, ...]:
        """Preempted ones, then by length."""
        fresh = sequence.scheduled_at is None
        return (fresh, len(sequence.request.prompt) if fresh else 0, sequence.serial)

    def running_rank(self, sequence: Sequence) -> tuple[int, ...]:
        """By arrival: who came last has the least to lose."""
        return (sequence.serial,)
