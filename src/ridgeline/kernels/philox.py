"""Random numbers that follow from a seed and a place alone: Philox 4 × 32 with 10 rounds.

Dropout in a backward must leave out what the forward did, whatever tiles both are cut into. So
whether the weight of query i and key j of head h stays is decided by the first word of

    philox(counter = (j, i, h, 0), key = the 64 bits of the seed)

(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3), compared with
p · 2³². Kernels compute the same words; the known answers of the paper's library are in the tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], seed: int) -> tuple[Tensor, ...]:
    """The four words of each counter, as int64 in [0, 2³²); counters broadcast."""
    c0, c1, c2, c3 = (word & _LOW for word in counter)
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(_ROUNDS):
        high0, low0 = _wide_product(c0, _MULTIPLIERS[0])
        high2, low2 = _wide_product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


def _wide_product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The upper and the lower 32 bits of a product; halves keep every sum within int64."""
    upper, lower = word >> 16, word & 0xFFFF
    first, second = upper * factor, lower * factor
    middle = first + (second >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (second & 0xFFFF)


def drop_threshold(share: float) -> int:
    """Words below this are dropped."""
    return min(round(share * 2**32), 2**32 - 1)


def kept_weights(share: float, seed: int, heads: Tensor, rows: Tensor, keys: Tensor) -> Tensor:
    """Which attention weights stay: bool [len(heads), len(rows), len(keys)]."""
    words = philox(
        (
            keys.long()[None, None, :],
            rows.long()[None, :, None],
            heads.long()[:, None, None],
            torch.zeros((), dtype=torch.int64, device=keys.device),
        ),
        seed,
    )
    return words[0] >= drop_threshold(share)
