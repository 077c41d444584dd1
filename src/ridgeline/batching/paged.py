"""Blocks on demand, anywhere: the layout of PagedAttention (Kwon et al., 2309.06180, section 4).

A sequence holds the blocks of the tokens it has, so at most one block of it is partly empty. Full
blocks with equal beginnings are shared by name; forks share everything, and whoever first writes
into a shared block gets a copy of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ridgeline.batching.pool import BlockPool
from ridgeline.batching.prefix import BlockNames
from ridgeline.batching.sequence import Sequence


class Paged:
    """Tables of single blocks over a `BlockPool`."""

    shares = True

    def __init__(self, num_blocks: int, block_size: int, *, prefix: bool) -> None:
        self._size = block_size
        self._prefix = prefix
        self._pool = BlockPool(num_blocks)
        self._names = BlockNames(block_size)
        self.most_tokens = num_blocks * block_size

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
        pool = self._pool
        new = -(-len(sequence.tokens) // self._size) - len(known)
        revived = sum(pool.is_kept(block) for block in known)
        if new + revived + reserve > pool.num_free:
            return False
        for block in known:
            pool.hold(block)
        sequence.blocks = known + pool.take_many(new)
        sequence.num_computed = len(known) * self._size
        sequence.num_remembered = len(known)
        return True

    def extend(self, sequence: Sequence, num_tokens: int, copies: list[tuple[int, int]]) -> bool:
        """Room to write [num_computed, num_tokens); False and nothing changed: too few are free."""
        pool, blocks, size = self._pool, sequence.blocks, self._size
        if sequence.num_computed == len(blocks) * size == num_tokens - 1:  # all but always so
            if not pool.num_free:
                return False
            blocks.append(pool.take())
            sequence.writable = num_tokens - 1 + size
            return True
        written = sequence.num_computed // size
        shared = written < len(blocks) and pool.references[blocks[written]] > 1
        new = max(0, -(-num_tokens // size) - len(blocks))
        if new + shared > pool.num_free:
            return False
        if shared:
            copy = pool.take()
            copies.append((blocks[written], copy))
            pool.drop((blocks[written],))
            blocks[written] = copy
        for _ in range(new):
            blocks.append(pool.take())
        sequence.writable = len(blocks) * size
        return True

    def share(self, parent: Sequence, child: Sequence) -> None:
        """The child holds every block that has computed KV of the parent, too."""
        used = -(-parent.num_computed // self._size)
        child.blocks = parent.blocks[:used]
        for block in child.blocks:
            self._pool.hold(block)
        child.num_computed = parent.num_computed
        child.num_remembered = min(parent.num_remembered, used)
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
        for index in range(sequence.num_remembered, full):
            self._pool.name(sequence.blocks[index], sequence.hashes[index])
        sequence.num_remembered = full

    def _name(self, sequence: Sequence, num_blocks: int) -> None:
        adapter = sequence.request.adapter
        self._names.append(sequence.hashes, sequence.tokens, num_blocks, adapter)

    def free(self, sequence: Sequence) -> None:
        """Its end is forgotten first: beginnings are what others share."""
        self._pool.drop(reversed(sequence.blocks))

    def disown(self, sequence: Sequence, first: int) -> None:
        """Unname the blocks from `first` on, and those before that nobody else holds."""
        references = self._pool.references
        for index, block in enumerate(sequence.blocks):
            if index >= first or references[block] == 1:
                self._pool.unname(block)

    def check(self, holders: Iterable[Sequence] | None) -> None:
        """Raise AssertionError if the pool's books are wrong, or not those of `holders`."""
        self._pool.check()
        if holders is None:
            return
        held = Counter(block for sequence in holders for block in sequence.blocks)
        for block, count in enumerate(self._pool.references):
            assert held[block] == count, f"block {block}: {held[block]} holders, {count} counted"
