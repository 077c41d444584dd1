"""Rotary embedding of queries and keys, both ways, with heads that fill no tile."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.triton.rotary import turn

_CASES = ((False, 2, 5, 3, 1, 24), (True, 2, 5, 1, 2, 24), (False, 130, 1, 1, 1, 2))
"""Whether neighbours are pairs; sequences, tokens, heads of queries and of keys, and their size."""


def example() -> list[tuple[Tensor, Tensor]]:
    """Queries and keys in bfloat16, laid out unlike; halves are pairs, or neighbours."""
    found = []
    for interleaved, batch, length, query_heads, key_heads, size in _CASES:
        queries = torch.randn(batch, length, query_heads, size).bfloat16().transpose(1, 2)
        keys = torch.randn(batch, key_heads, length, size).bfloat16()
        angles = torch.rand(1, length, size // 2) * 6
        angles = angles.repeat_interleave(2, -1) if interleaved else torch.cat([angles] * 2, -1)
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        for backwards in (False, True):
            turned = torch.empty_like(queries), torch.empty_like(keys)
            turn(turned, (queries, keys), (cos, sin), interleaved=interleaved, backwards=backwards)
            found += [
                (new, _turned(old, cos, sin, interleaved=interleaved, backwards=backwards))
                for new, old in zip(turned, (queries, keys), strict=True)
            ]
    return found


def _turned(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool, backwards: bool) -> Tensor:
    wide, cosine, sine = (one.double() for one in (x, cos[:, None], sin[:, None]))
    if interleaved:
        first, second = wide[..., ::2], wide[..., 1::2]
        other = torch.stack([-second, first], -1).flatten(-2)
    else:
        first, second = wide.chunk(2, -1)
        other = torch.cat([-second, first], -1)
    return wide * cosine + other * (-sine if backwards else sine)
