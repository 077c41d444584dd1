"""A cache that keeps the first and the recent tokens of a sequence, and gives the rest back.

Every query sees the first tokens (attention needs somewhere to leave weight that belongs nowhere)
and a window of recent ones (Xiao et al., "StreamingLLM", 2309.17453, section 3.2; there, places are
counted within what is kept, here tokens stay where they stand in the text). So blocks between the
two are free for others as soon as no later query sees them, and a sequence never holds more than
`most_blocks`, however long it becomes. Answers are not those of the whole cache.
"""

from __future__ import annotations

from dataclasses import dataclass

CHUNK = 256
"""Tokens of a prompt in one step at most: they are kept beside the window while it is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTokens:
    """What of a sequence is seen, and so kept."""

    recent: int
    """Each token sees so many last ones, itself among them."""
    first: int = 4
    """And so many at the beginning."""

    def first_blocks(self, block_size: int) -> int:
        """Blocks that are never given back."""
        return -(-self.first // block_size)

    def most_blocks(self, block_size: int) -> int:
        """Blocks that a sequence holds at once: the first, the window and a chunk of its prompt.

        >>> KeptTokens(recent=1024, first=4).most_blocks(16)
        82
        """
        return self.first_blocks(block_size) + -(-(self.recent + CHUNK - 1) // block_size) + 1

    def unseen_blocks(self, num_computed: int, block_size: int) -> int:
        """Blocks, from the first on, of which no query from `num_computed` on sees the window."""
        return max(0, num_computed - self.recent + 1) // block_size
