"""KV blocks that are free, held or kept, and their names, by which equal beginnings are found.

The KV of a block depends on every token up to its end and on the adapter, so a block's name is a
hash over its tokens and the name of the block before it; the first block's predecessor is the
adapter. The tokens that stand for an image are the same for every image, so a block with some of
them also takes the image's hash and place. Only full blocks have names. BLAKE2b with 128 bits: a
collision would show one user's context to another, so it must not be possible to make one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from struct import Struct

from ridgeline.batching.sequence import Content

DIGEST_BYTES = 16
_PLACE = Struct("q")


@cache
def root(adapter: str) -> bytes:
    """What the first block of every sequence of this adapter follows."""
    return blake2b(adapter.encode(), digest_size=DIGEST_BYTES).digest()


class BlockNames:
    """Names of the full blocks of token lists."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._pack = Struct(f"{block_size}I").pack

    def append(
        self,
        hashes: list[bytes],
        tokens: list[int],
        num_blocks: int,
        adapter: str,
        contents: tuple[Content, ...] = (),
    ) -> None:
        """Make `hashes`, the names of the first blocks of `tokens`, as many as `num_blocks`."""
        size = self._size
        parent = hashes[-1] if hashes else root(adapter)
        for start in range(len(hashes) * size, num_blocks * size, size):
            packed = self._pack(*tokens[start : start + size])
            if contents:
                packed += _behind(contents, start, start + size)
            parent = blake2b(parent + packed, digest_size=DIGEST_BYTES).digest()
            hashes.append(parent)


def _behind(contents: tuple[Content, ...], start: int, stop: int) -> bytes:
    """What stands behind the tokens [start, stop), and where it begins, seen from `start`."""
    return b"".join(
        _PLACE.pack(one.start - start) + one.digest
        for one in contents
        if one.start < stop and one.stop > start
    )


def prefix_hashes(tokens: list[int], block_size: int, adapter: str = "") -> list[bytes]:
    """Names of all full blocks of `tokens`; what a router compares prompts by.

    >>> one, two = prefix_hashes([1, 2, 3, 4, 5], 2), prefix_hashes([1, 2, 3, 9], 2)
    >>> len(one), one[0] == two[0], one[1] == two[1]
    (2, True, False)
    >>> prefix_hashes([1, 2], 2, "adapter") == one[:1]
    False
    """
    hashes: list[bytes] = []
    BlockNames(block_size).append(hashes, tokens, len(tokens) // block_size, adapter)
    return hashes


class BlockPool:
    """Reference counts, the free list, and the table of names; every operation is O(1).

    A free block is either empty or kept: its content has a name and comes back to life when a
    prompt needs it. Empty blocks are given out first, then the kept one let go longest ago.
    """

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
