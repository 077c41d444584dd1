"""Random numbers that belong to a request, and draws with one of them per token.

The number of the token at position n is a hash of (key, n, purpose): it depends neither on the
batch nor on what was drawn before, so a preempted completion goes on as if it had not been. A token
is drawn by inverting the cumulative distribution, for which one number suffices, where Gumbel noise
would need one per entry of the vocabulary.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from struct import Struct

import torch
from torch import Tensor

from ridgeline.errors import RidgelineError

COUNTER = Struct("<16sqq")
SPAN = 512
"""Entries that are summed before the exact search looks inside."""


class NotFinite(RidgelineError):
    """Some row has NaN or infinities instead of numbers; whose it is shows when each is alone."""


def check_finite(best: Tensor) -> None:
    """Raise `NotFinite` unless every row's largest logit, or any of its weights, is a number.

    The largest value tells: it is NaN where any is, infinite where one is, and minus infinity where
    no token may come.
    """
    if not bool(best.isfinite().all()):
        raise NotFinite("the model gave no finite numbers (NaN, infinity, or no token is left)")


class Purpose(IntEnum):
    """What a number is for; numbers of different purposes are independent."""

    TOKEN = 0
    ACCEPT = 1
    DRAFT = 2


def key_of(seed: int | None, index: int, fallback: str) -> bytes:
    """16 bytes that name a completion's stream of numbers.

    Completion i of a request with seed s is completion 0 of one with seed s + i. Without a seed the
    stream is that of `fallback` (the engine's seed and the request's id).
    """
    name = f"{fallback}/{index}" if seed is None else str(seed + index)
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def uniform(key: bytes, position: int, purpose: Purpose) -> float:
    """A number in [0, 1), made of 53 bits of blake2b.

    >>> key = key_of(7, 0, "")
    >>> uniform(key, 0, Purpose.TOKEN) == uniform(key, 0, Purpose.TOKEN)
    True
    """
    packed = COUNTER.pack(key, position, purpose)
    digest = hashlib.blake2b(packed, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def draw(weights: Tensor, numbers: Tensor) -> Tensor:
    """Draw an entry per row, by chances proportional to weights: [R, V] and [R] to [R] int64.

    The first entry at which the cumulative weight exceeds `number` · total, summed in float64: over
    spans first, then inside one, so that the vocabulary is read once and nothing that large is
    written. Entries of weight 0 are never drawn.

    Args:
        weights: Not negative, at least one above 0; need not add up to 1.
        numbers: In [0, 1).
    """
    rows, vocab = weights.shape
    spans = -(-vocab // SPAN)
    full = vocab // SPAN
    sums = torch.empty((rows, spans), dtype=torch.float64, device=weights.device)
    sums[:, :full] = weights[:, : full * SPAN].unflatten(1, (full, SPAN)).sum(-1) if full else 0.0
    if full < spans:
        sums[:, full:] = weights[:, full * SPAN :].sum(-1, keepdim=True)
    numbers = numbers.to(weights.device, torch.float64)
    span, below = _invert(sums, numbers * sums.sum(-1))
    columns = span[:, None] * SPAN + torch.arange(SPAN, device=weights.device)
    inside = weights.gather(1, columns.clamp_max(vocab - 1)).double()
    inside.masked_fill_(columns >= vocab, 0.0)
    entry, _ = _invert(inside, below)
    return span * SPAN + entry


def _invert(weights: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """First entry whose cumulative weight exceeds the target, and what is left of it there."""
    cumulative = weights.cumsum(-1)
    found = torch.searchsorted(cumulative, targets[:, None], right=True).squeeze(-1)
    # Rounding may leave the target at or above the last sum: the last entry with weight is meant.
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous()).squeeze(-1)
    found = torch.minimum(found, last)
    before = cumulative.gather(1, found[:, None]) - weights.gather(1, found[:, None])
    return found, (targets - before.squeeze(-1)).clamp_min(0.0)
