"""The KV cache as bookkeeping: which blocks hold which tokens of whom. No tensors.

Every layout is expressed in block tables (`Sequence.blocks`), so kernels do not know which one
they serve. `paged.py` is the layout to use; `consecutive.py` has the two it replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ridgeline.batching.consecutive import Contiguous, Dynamic
from ridgeline.batching.kept_tokens import KeptTokens
from ridgeline.batching.paged import Paged
from ridgeline.batching.sequence import Sequence

Layout = Literal["paged", "contiguous", "dynamic"]


class BlockCache:
    """Blocks of `block_size` tokens each, and who holds them.

    Args:
        num_blocks: In all.
        block_size: Tokens of a block.
        prefix: Whether full blocks are found again by their content. Only the paged layout can
            share blocks; in the others, it makes no difference.
        layout: paged: blocks on demand. contiguous: `max_length` tokens in consecutive blocks,
            reserved at admission. dynamic: consecutive blocks for the prompt, doubled when full.
        max_length: Tokens that the contiguous layout reserves; None: all there are.
        kept: What sequences keep, in the paged layout; None: all of their tokens.
        states: Whether blocks hold not all that a sequence has computed: no two can share any.

    Raises:
        ValueError: A size is below one, or `max_length` or what is kept does not fit the blocks.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix: bool = True,
        layout: Layout = "paged",
        max_length: int | None = None,
        kept: KeptTokens | None = None,
        states: bool = False,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"{num_blocks} KV blocks of {block_size} tokens hold nothing")
        longest = num_blocks * block_size if max_length is None else max_length
        if layout == "contiguous" and not 1 <= longest <= num_blocks * block_size:
            raise ValueError(
                f"the contiguous layout reserves {longest} tokens for each sequence and the cache "
                f"has {num_blocks * block_size}: lower max_length or enlarge the cache"
            )
        if kept is not None and (layout != "paged" or kept.most_blocks(block_size) > num_blocks):
            raise ValueError(f"{num_blocks} {layout} blocks do not keep what {kept} says")
        self.kept = kept
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.layout = layout
        self._layout = (
            Paged(num_blocks, block_size, prefix=prefix and not states, kept=kept)
            if layout == "paged"
            else Contiguous(num_blocks, block_size, longest)
            if layout == "contiguous"
            else Dynamic(num_blocks, block_size)
        )
        self.shares = self._layout.shares and not states
        """Whether sequences can hold blocks together."""
        self.prefix = prefix and self.shares
        self.extend = self._layout.extend
        self.shrink = self._layout.shrink
        self.remember = self._layout.remember

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds, remembered ones among them."""
        return self._layout.num_free

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold."""
        return 1.0 - self._layout.num_free / self.num_blocks

    @property
    def most_tokens(self) -> int:
        """Tokens of one sequence that has the cache to itself."""
        return self._layout.most_tokens

    def known(self, sequence: Sequence) -> list[int]:
        """Blocks that hold KV of the sequence's beginning already, never of its last token."""
        return self._layout.known(sequence)

    def admit(self, sequence: Sequence, known: list[int], *, reserve: int = 0) -> bool:
        """Give it blocks for all its tokens; False: fewer than `reserve` would stay free.

        `known` (from the method of that name) come first and count as computed.
        """
        return self._layout.admit(sequence, known, reserve)

    def share(self, parent: Sequence, child: Sequence) -> None:
        """Let the child hold all computed blocks of the parent; who writes first copies."""
        self._layout.share(parent, child)

    def extend_full(self, sequences: list[Sequence]) -> list[Sequence]:
        """Give those that only need a new block for their next token one; the others come back."""
        return self._layout.extend_full(sequences) if isinstance(self._layout, Paged) else sequences

    def room(self, sequence: Sequence) -> int:
        """Tokens of its prompt that may be computed now, after more blocks were taken if need be.

        All of them, unless only some tokens are kept.
        """
        if self.kept is None or not isinstance(self._layout, Paged):
            return len(sequence.tokens) - sequence.num_computed
        return self._layout.room(sequence, self.kept)

    def slide(self, sequence: Sequence) -> None:
        """Give back what no later token of the sequence sees; nothing where all is kept."""
        if self.kept is not None and isinstance(self._layout, Paged):
            self._layout.slide(sequence, self.kept)

    def free(self, sequence: Sequence) -> None:
        """Take all its blocks; what is full and computed stays known until it is overwritten."""
        self._layout.remember(sequence, sequence.num_computed)
        self._layout.free(sequence)
        sequence.blocks = []
        sequence.num_computed = sequence.num_remembered = 0
        sequence.writable = sequence.dropped = 0

    def discard(self, sequence: Sequence, trusted: int) -> None:
        """Free a sequence's blocks; of the first `trusted` tokens, what others hold stays known."""
        self._layout.disown(sequence, trusted // self.block_size)
        self._layout.free(sequence)
        sequence.blocks = []
        sequence.num_computed = sequence.num_remembered = 0
        sequence.writable = sequence.dropped = 0

    def forget(self) -> None:
        """Let no sequence that comes find what is cached now; those that hold blocks keep them."""
        self._layout.forget()

    def check(self, holders: Iterable[Sequence] | None = None) -> None:
        """Raise AssertionError with what is broken; with all `holders`, count theirs too."""
        self._layout.check(holders)


def direct_copies(copies: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same copies with each from where its content lay before the step.

    A run that moves twice in one step (for a token, then for drafts) is copied from a block that is
    itself copied into; whoever copies all at once would take what was there before.

    >>> direct_copies([(0, 1), (1, 2)])
    ((0, 1), (0, 2))
    """
    origins: dict[int, int] = {}
    for source, target in copies:
        origins[target] = origins.get(source, source)
    return tuple((source, target) for target, source in origins.items())
