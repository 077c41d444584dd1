"""Rotary embedding of queries and keys, both ways, with heads that fill no tile."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.triton.rotary import turn

_CASES = (
    (False, 2, 5, 3, 1, 24, 0, torch.bfloat16),
    (True, 2, 5, 1, 2, 24, 1, torch.bfloat16),
    (False, 130, 1, 1, 1, 2, 1, torch.bfloat16),
    (True, 1, 2, 1, 1, 6, 0, torch.float32),
)
"""Whether neighbours are pairs; sequences, tokens, heads of queries and of keys, and their size;
whether sequences share their angles."""


def example() -> list[tuple[Tensor, Tensor]]:
    """Queries and keys, laid out unlike; halves are pairs, or neighbours.

    Cosines and sines of both halves differ, as those of no angle do, and lie in unlike steps.
    """
    found = []
    for interleaved, batch, length, query_heads, key_heads, size, shared, dtype in _CASES:
        queries = torch.randn(batch, length, query_heads, size).to(dtype).transpose(1, 2)
        keys = torch.randn(batch, key_heads, length, size).to(dtype)
        cos, sin = (
            torch.rand(shared or batch, length, wide).to(dtype)[..., :size]
            for wide in (size, size + 8)
        )
        for backwards in (False, True):
            turned = torch.empty_like(queries), torch.empty_like(keys)
            turn(turned, (queries, keys), (cos, sin), interleaved=interleaved, backwards=backwards)
            found += [
                (new, _turned(old, cos, sin, interleaved=interleaved, backwards=backwards))
                for new, old in zip(turned, (queries, keys), strict=True)
            ]
    return found


def _turned(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool, backwards: bool) -> Tensor:
    (a, b), (cos_1, cos_2), (sin_1, sin_2) = (
        (one[..., ::2], one[..., 1::2]) if interleaved else one.chunk(2, -1)
        for one in (x.double(), cos[:, None].double(), sin[:, None].double())
    )
    if backwards:
        found = a * cos_1 + b * sin_2, b * cos_2 - a * sin_1
    else:
        found = a * cos_1 - b * sin_1, b * cos_2 + a * sin_2
    return torch.stack(found, -1).flatten(-2) if interleaved else torch.cat(found, -1)
