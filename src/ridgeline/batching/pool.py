"""Blocks one by one: who is free, who is shared, and which free ones still hold something known.

A free block is either empty or kept: its content has a name (`prefix.py`) and comes back to life
when a prompt needs it. Empty blocks are given out first, then the kept one that was let go longest
ago. Every operation is O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class BlockPool:
    """Reference counts, the free list, and the table of names."""

    def __init__(self, num_blocks: int) -> None:
        self.references = [0] * num_blocks
        self.block_of: dict[bytes, int] = {}
        """Name → block."""
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
        """As `take`, so often.

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
        """One more holder, of a held or a kept block."""
        if self.references[block]:
            self._num_shared += 1
        else:
            del self._kept[block]
        self.references[block] += 1

    def drop(self, blocks: Iterable[int]) -> None:
        """One holder less for each; the last one frees it. The first is forgotten first."""
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

    def name(self, block: int, name: bytes) -> None:
        """Remember what a held block contains, unless another block with the same is known."""
        if name not in self.block_of and self._name_of[block] is None:
            self.block_of[name] = block
            self._name_of[block] = name

    def unname(self, block: int) -> None:
        """Let nobody find a held block by its content any more; one without a name stays so."""
        name = self._name_of[block]
        if name is not None:
            del self.block_of[name]
            self._name_of[block] = None

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
