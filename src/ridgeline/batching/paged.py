"""Blocks on demand, anywhere: the layout of PagedAttention (Kwon et al., 2309.06180, section 4).

A sequence holds the blocks of the tokens it has, so at most one block of it is partly empty. Full
blocks with equal beginnings are shared by name; forks share everything, and whoever first writes
into a shared block gets a copy of it.

Names are made in `block_names.py`.

A free block is either empty or kept: its content has a name and comes back to life when a prompt
needs it. Empty blocks are given out first, then the kept one that was let go longest ago. Every
operation of the pool is O(1).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

from ridgeline.batching.block_names import BlockNames
from ridgeline.batching.kept_tokens import CHUNK, KeptTokens
from ridgeline.batching.sequence import Sequence

UNBOUNDED = 2**62
"""Tokens or blocks, where nothing limits them."""


class BlockPool:
    """Reference counts, the free list, and the table of names."""

    def __init__(self, num_blocks: int) -> None:
        self.references = [0] * num_blocks
        self.block_of: dict[bytes, int] = {}
        """The block of each name."""
        self._name_of: list[bytes | None] = [None] * num_blocks
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._num_shared = 0
        """Holders beyond the first, of all blocks."""

    @property
    def num_free(self) -> int:
        """Empty and kept ones."""
        return len(self._empty) + len(self._kept)

    def is_kept(self, block: int) -> bool:
        """Whether it is free but remembered."""
        return block in self._kept

    def take(self) -> int:
        """A free block, now held once and without a name.

        Raises:
            IndexError: None is free.
        """
        if self._empty:
            block = self._empty.pop()
        elif self._kept:
            block, _ = self._kept.popitem(last=False)
            name = self._name_of[block]
            assert name is not None
            del self.block_of[name]
            self._name_of[block] = None
        else:
            raise IndexError("no block is free")
        self.references[block] = 1
        return block

    def take_many(self, count: int) -> list[int]:
        """So many free blocks, each held once and without a name.

        Raises:
            IndexError: Fewer are free.
        """
        empty = self._empty
        first = max(0, len(empty) - count)
        blocks = empty[first:]
        blocks.reverse()
        del empty[first:]
        for block in blocks:
            self.references[block] = 1
        return blocks + [self.take() for _ in range(count - len(blocks))]

    def hold(self, block: int) -> None:
        """Give a held or a kept block one more holder."""
        if self.references[block]:
            self._num_shared += 1
        else:
            del self._kept[block]
        self.references[block] += 1

    def drop(self, blocks: Iterable[int]) -> None:
        """Take a holder from each block; the last one frees it. The first is forgotten first."""
        references, names = self.references, self._name_of
        if not self.block_of and not self._num_shared:  # so all become empty
            freed = list(blocks)
            for block in freed:
                references[block] = 0
            self._empty += freed
            return
        for block in blocks:
            references[block] -= 1
            if references[block]:
                self._num_shared -= 1
            elif names[block] is None:
                self._empty.append(block)
            else:
                self._kept[block] = None

    def name(self, blocks: list[int], names: list[bytes]) -> None:
        """Remember what held blocks contain, each unless another block with the same is known."""
        block_of, name_of = self.block_of, self._name_of
        for block, name in zip(blocks, names, strict=True):
            if name_of[block] is None and name not in block_of:
                block_of[name] = block
                name_of[block] = name

    def unname(self, block: int) -> None:
        """Let nobody find a held block by its content any more; one without a name stays so."""
        name = self._name_of[block]
        if name is not None:
            del self.block_of[name]
            self._name_of[block] = None

    def unname_all(self) -> None:
        """Let nobody find any block by its content any more; kept ones become empty."""
        self._empty.extend(self._kept)
        self._kept.clear()
        self.block_of.clear()
        self._name_of = [None] * len(self._name_of)

    def check(self) -> None:
        """Raise AssertionError if the books do not agree with each other."""
        empty, kept = set(self._empty), set(self._kept)
        assert len(empty) == len(self._empty), "a block is in the free list twice"
        assert not empty & kept, "a block is empty and kept"
        free = {block for block, count in enumerate(self.references) if not count}
        assert empty | kept == free, f"leaked or doubly owned: {sorted((empty | kept) ^ free)}"
        assert all(count >= 0 for count in self.references), "a block was dropped too often"
        shared = sum(count - 1 for count in self.references if count)
        assert shared == self._num_shared, "holders beyond the first are miscounted"
        named = {block for block, name in enumerate(self._name_of) if name is not None}
        assert not named & empty, "an empty block has a name"
        assert kept <= named, "a kept block has no name"
        assert set(self.block_of.values()) == named, "names and blocks disagree"
        assert all(self._name_of[block] == name for name, block in self.block_of.items())


class Paged:
    """Tables of single blocks over a `BlockPool`."""

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
