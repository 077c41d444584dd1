"""The names of KV blocks, by which equal beginnings are found.

The KV of a block depends on every token up to its end and on the adapter, so a block's name is a
hash over its tokens and the name of the block before it; the first block's predecessor is the
adapter. The tokens that stand for an image are the same for every image, so a block with some of
them also takes the image's hash and place. Only full blocks have names. BLAKE2b with 128 bits: a
collision would show one user's context to another, so it must not be possible to make one.
"""

from __future__ import annotations

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
