"""The order of samples, which is a function of the seed and the sample's number alone.

No rank, worker or batch size enters, so any number of processes can each compute its own part, and
a run goes on from one integer. Nothing is stored: a permutation of billions of sequences is a
Feistel network (Luby and Rackoff 1988, "How to construct pseudorandom permutations from
pseudorandom functions") over the next power of four, walked until it falls into range (Black and
Rogaway 2002, "Ciphers with arbitrary finite domains", section 3). The round function is the
finaliser of splitmix64 (Steele, Lea and Flood 2014, figure 17).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ridgeline.errors import InputError

Indices = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]
_ROUNDS = 8
"""Four would do for large domains; a domain of a few bits needs more to be even."""
_AHEAD = 1024
"""Samples whose places are computed in one go."""
_BLOCK = 2**16
"""Samples after which a mixture repeats its shares exactly: they are multiples of 1 / 65,536."""


def _mix(value: _Words) -> _Words:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def hash_of(*numbers: int) -> int:
    """64 bits from a few integers.

    >>> hash_of(0, 1) == hash_of(0, 1), hash_of(0, 1) == hash_of(1, 0)
    (True, False)
    """
    content = b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def permute(indices: Indices, size: int, keys: int | _Words) -> Indices:
    """Each index below `size` at its place in the permutation that belongs to its key.

    >>> sorted(permute(np.arange(5), 5, keys=3).tolist())
    [0, 1, 2, 3, 4]
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    keys = np.broadcast_to(np.asarray(keys, np.uint64), indices.shape)
    values = _feistel(indices.astype(np.uint64), half, keys)
    outside = np.flatnonzero(values >= size)
    while len(outside):
        values[outside] = _feistel(values[outside], half, keys[outside])
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _feistel(values: _Words, half: np.uint64, keys: _Words) -> _Words:
    mask = np.uint64((1 << int(half)) - 1)
    left, right = values >> half, values & mask
    for _ in range(_ROUNDS):
        keys = keys + np.uint64(0x9E3779B97F4A7C15)
        left, right = right, left ^ (_mix(right + _mix(keys)) & mask)
    return (left << half) | right


@dataclass(slots=True, kw_only=True)
class SampleOrder:
    """Which sequence of which source each sample of the run is."""

    sizes: tuple[int, ...]
    """Sequences in each source."""
    weights: tuple[float, ...]
    seed: int
    shuffle: bool
    _block: tuple[int, Indices, Indices] | None = field(default=None, repr=False)
    _run: tuple[int, Indices, Indices] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if min(self.weights) <= 0:
            raise InputError(f"data.sources: weights are {list(self.weights)}; each must exceed 0")
        if np.diff(self._slot_ends(), prepend=0).min() < 1:
            raise InputError(
                f"data.sources: of weights {list(self.weights)} one is a share below 1/{_BLOCK};"
                " leave that source out or give it more"
            )

    def between(self, start: int, stop: int) -> tuple[Indices, Indices]:
        """The source and sequence of samples `start` … `stop - 1`; quick for calls in order."""
        if self._run is None or not self._run[0] <= start <= stop <= self._run[0] + _AHEAD:
            count = max(_AHEAD, stop - start)
            self._run = (start, *self.at(np.arange(start, start + count)))
        first, source, sequence = self._run
        return source[start - first : stop - first], sequence[start - first : stop - first]

    def at(self, samples: Indices) -> tuple[Indices, Indices]:
        """Source and sequence within it, of each sample of the run (counted from 0)."""
        source, draw = self._draws(samples)
        sequence = np.empty(len(samples), np.int64)
        for number, size in enumerate(self.sizes):
            here = np.flatnonzero(source == number)
            epochs, place = np.divmod(draw[here], size)
            if self.shuffle and len(here):
                known, which = np.unique(epochs, return_inverse=True)
                keys = np.array([hash_of(self.seed, number, int(e)) for e in known], np.uint64)
                place = permute(place, size, keys[which])
            sequence[here] = place
        return source, sequence

    def _draws(self, samples: Indices) -> tuple[Indices, Indices]:
        """Source of each sample, and how many samples of that source came before it."""
        if len(self.sizes) == 1:
            return np.zeros(len(samples), np.int64), samples
        source = np.empty(len(samples), np.int64)
        draw = np.empty(len(samples), np.int64)
        block, place = np.divmod(samples, _BLOCK)
        for one in np.unique(block):
            owner, before = self._of_block(int(one))
            here = block == one
            source[here] = owner[place[here]]
            draw[here] = before[place[here]]
        return source, draw

    def _of_block(self, block: int) -> tuple[Indices, Indices]:
        if self._block is None or self._block[0] != block:
            ends = self._slot_ends()
            slots = permute(np.arange(_BLOCK), _BLOCK, hash_of(self.seed, -1, block))
            owner = np.searchsorted(ends, slots, side="right")
            before = np.empty(_BLOCK, np.int64)
            counts = np.diff(ends, prepend=0)
            for number, count in enumerate(counts):
                here = np.flatnonzero(owner == number)
                before[here] = block * int(count) + np.arange(len(here))
            self._block = (block, owner, before)
        return self._block[1], self._block[2]

    def _slot_ends(self) -> Indices:
        """Where each source's places in a block end."""
        shares = np.cumsum(self.weights) / sum(self.weights)
        return np.round(shares * _BLOCK).astype(np.int64)
