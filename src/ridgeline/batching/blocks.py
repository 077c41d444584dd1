"""The KV cache as bookkeeping: which blocks hold which tokens of whom. No tensors.

Every layout is expressed in block tables (`Sequence.blocks`), so kernels do not know which one
they serve. `Paged` is the layout to use; `consecutive.py` has the two it replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from ridgeline.batching.consecutive import Contiguous, Dynamic
from ridgeline.batching.kept_tokens import CHUNK, KeptTokens
from ridgeline.batching.pool import BlockNames, BlockPool
from ridgeline.batching.sequence import Sequence

Layout = Literal["paged", "contiguous", "dynamic"]
UNBOUNDED = 2**62
"""Tokens or blocks, where nothing limits them."""


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


class Paged:
    """Blocks on demand, anywhere: the layout of PagedAttention (Kwon et al., 2309.06180, sec. 4).

    A sequence holds the blocks of the tokens it has, so at most one block of it is partly empty.
    Full blocks with equal beginnings are shared by name (`pool.py`); forks share everything, and
    whoever first writes into a shared block gets a copy of it.
    """

    shares = True

    def __init__(
        self, num_blocks: int, block_size: int, *, prefix: bool, kept: KeptTokens | None = None
    ) -> None:
        self._size = block_size
        self._prefix = prefix
        self._pool = BlockPool(num_blocks)
        self._names = BlockNames(block_size)
        self.most_tokens = num_blocks * block_size if kept is None else UNBOUNDED
        self._most_blocks = UNBOUNDED if kept is None else kept.most_blocks(block_size)
        self._kept = kept
        self._first_blocks = 0 if kept is None else kept.first_blocks(block_size)

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds."""
        return self._pool.num_free

    def known(self, sequence: Sequence) -> list[int]:
        """Blocks whose content is the sequence's beginning; never with its last token."""
        if not self._prefix or not sequence.request.reuse_prefix:
            return []
        # Computing the last token gives the logits that the next one is picked from.
        most = (len(sequence.tokens) - 1) // self._size
        block_of = self._pool.block_of
        found: list[int] = []
        if len(sequence.hashes) < most:
            self._name(sequence, most)
        for name in sequence.hashes[:most]:
            block = block_of.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def admit(self, sequence: Sequence, known: list[int], reserve: int) -> bool:
        """Blocks for all its tokens, `known` ones first; False: fewer than `reserve` would stay."""
        pool, size, first = self._pool, self._size, self._first_blocks
        dropped = 0
        if self._kept is not None:  # of what is known, too, only what is still seen
            dropped = max(0, self._kept.unseen_blocks(len(known) * size, size) - first)
        held = known[:first] + known[first + dropped :]
        new = min(-(-len(sequence.tokens) // size) - len(known), self._most_blocks - len(held))
        revived = sum(pool.is_kept(block) for block in held)
        if new + revived + reserve > pool.num_free:
            return False
        for block in held:
            pool.hold(block)
        sequence.blocks = held + pool.take_many(new)
        sequence.dropped = dropped
        sequence.num_computed = len(known) * size
        sequence.num_remembered = len(known)
        return True

    def extend(self, sequence: Sequence, num_tokens: int, copies: list[tuple[int, int]]) -> bool:
        """Room to write [num_computed, num_tokens); False and nothing changed: too few are free."""
        pool, blocks, size = self._pool, sequence.blocks, self._size
        held = (len(blocks) + sequence.dropped) * size
        written = sequence.num_computed // size - sequence.dropped
        shared = written < len(blocks) and pool.references[blocks[written]] > 1
        new = max(0, -(-(num_tokens - held) // size))
        if new + shared > pool.num_free:
            return False
        if shared:
            copy = pool.take()
            copies.append((blocks[written], copy))
            pool.drop((blocks[written],))
            blocks[written] = copy
        for _ in range(new):
            blocks.append(pool.take())
        sequence.writable = (len(blocks) + sequence.dropped) * size
        return True

    def extend_full(self, sequences: list[Sequence]) -> list[Sequence]:
        """One block more for each whose next token begins one; the others, or all if few are free.

        All but always these are all that ask, some of them at every step.
        """
        if len(sequences) > self._pool.num_free:
            return sequences
        size, take = self._size, self._pool.take
        others = []
        for sequence in sequences:
            blocks, computed = sequence.blocks, sequence.num_computed
            held = (len(blocks) + sequence.dropped) * size
            if computed == held == len(sequence.tokens) - 1:
                blocks.append(take())
                sequence.writable = held + size
            else:
                others.append(sequence)
        return others

    def room(self, sequence: Sequence, kept: KeptTokens) -> int:
        """Tokens of its prompt that it has blocks for, after taking some of those that are free."""
        size, blocks, pool = self._size, sequence.blocks, self._pool
        missing = len(sequence.tokens) - (len(blocks) + sequence.dropped) * size
        more = min(-(-missing // size), kept.most_blocks(size) - len(blocks), pool.num_free)
        if more > 0:
            blocks += pool.take_many(more)
        held = (len(blocks) + sequence.dropped) * size
        return min(min(len(sequence.tokens), held) - sequence.num_computed, CHUNK)

    def slide(self, sequence: Sequence, kept: KeptTokens) -> None:
        """Give back the blocks between the first ones and the window.

        What is left of the prompt needs as many again, which are taken at once: nobody gets in
        between who would leave it with half of what it needs.
        """
        size, first, blocks = self._size, self._first_blocks, sequence.blocks
        unseen = kept.unseen_blocks(sequence.num_computed, size) - first - sequence.dropped
        if unseen <= 0:
            return
        self.remember(sequence, sequence.num_computed)
        self._pool.drop(reversed(blocks[first : first + unseen]))
        del blocks[first : first + unseen]
        sequence.dropped += unseen
        if sequence.num_computed < len(sequence.tokens) - 1:
            self.room(sequence, kept)

    def shrink(self, sequence: Sequence) -> None:
        """Give back the blocks behind the one that the next token is written to."""
        blocks, size = sequence.blocks, self._size
        needed = sequence.num_computed // size + 1 - sequence.dropped
        if len(blocks) > needed:
            self._pool.drop(reversed(blocks[needed:]))
            del blocks[needed:]
            sequence.writable = (needed + sequence.dropped) * size

    def share(self, parent: Sequence, child: Sequence) -> None:
        """The child holds every block that has computed KV of the parent, too."""
        used = -(-parent.num_computed // self._size) - parent.dropped
        child.dropped = parent.dropped
        child.blocks = parent.blocks[:used]
        for block in child.blocks:
            self._pool.hold(block)
        child.num_computed = parent.num_computed
        child.num_remembered = min(parent.num_remembered, used + parent.dropped)
        child.hashes = parent.hashes[: parent.num_computed // self._size]
        # Both must ask before they write: the last block is shared unless it is full.
        parent.writable = 0

    def remember(self, sequence: Sequence, num_tokens: int) -> None:
        """Name the full blocks among the first `num_tokens`, for others to find."""
        full = num_tokens // self._size
        if not self._prefix or full <= sequence.num_remembered:
            return
        if len(sequence.hashes) < full:
            self._name(sequence, full)
        first, back, blocks = sequence.num_remembered, sequence.dropped, sequence.blocks
        if not back:
            self._pool.name(blocks[first:full], sequence.hashes[first:full])
        for index in range(first, full) if back else ():
            held = index if index < self._first_blocks else index - back
            if held == index or held >= self._first_blocks:  # else it was given back
                self._pool.name([blocks[held]], [sequence.hashes[index]])
        sequence.num_remembered = full

    def _name(self, sequence: Sequence, num_blocks: int) -> None:
        request = sequence.request
        self._names.append(
            sequence.hashes, sequence.tokens, num_blocks, request.adapter, request.contents
        )

    def free(self, sequence: Sequence) -> None:
        """Let go of its blocks, its end first: beginnings are what others share."""
        self._pool.drop(reversed(sequence.blocks))

    def disown(self, sequence: Sequence, first: int) -> None:
        """Unname the blocks from `first` on, and those before that nobody else holds."""
        references = self._pool.references
        for held, block in enumerate(sequence.blocks):
            index = held if held < self._first_blocks else held + sequence.dropped
            if index >= first or references[block] == 1:
                self._pool.unname(block)

    def forget(self) -> None:
        """Let no sequence that comes find what is cached now."""
        self._pool.unname_all()

    def check(self, holders: Iterable[Sequence] | None) -> None:
        """Raise AssertionError if the pool's books are wrong, or not those of `holders`."""
        self._pool.check()
        if holders is None:
            return
        held = Counter(block for sequence in holders for block in sequence.blocks)
        for block, count in enumerate(self._pool.references):
            assert held[block] == count, f"block {block}: {held[block]} holders, {count} counted"


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
