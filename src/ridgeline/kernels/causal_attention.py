"""Causal attention of whole sequences over their own keys, computed by the kernel for caches.

    out_i = Σ_j softmax_j(scale · q_i·k_j) v_j    over j ≤ i

Keys [S, KV, L, D] that lie dense are a cache of S blocks with L tokens each, one to a sequence
(`paged_attention.py`). Where a processor multiplies bfloat16 that takes a third of the time of
PyTorch's own, which multiplies in float32 there and scores what causality takes away.

Shapes: S sequences of L tokens, H query heads, KV key-value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.kernels.paged_attention import LayerCache, PackedTokens, paged_attention


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """The attention of each query to keys that are not after it.

    Args:
        queries: [S, H, L, D], of any strides; H is a multiple of KV.
        keys: [S, KV, L, D].
        values: [S, KV, L, D].
        scale: The factor of the scores.

    Returns:
        [S, H, L, D] in the queries' dtype; the heads of a token lie side by side.
    """
    sequences, heads, length, size = queries.shape
    starts = torch.arange(0, (sequences + 1) * length, length, dtype=torch.int32)
    packed = PackedTokens(
        query_starts=starts,
        context_lengths=torch.full((sequences,), length, dtype=torch.int32),
        block_tables=torch.arange(sequences, dtype=torch.int32)[:, None],
        slots=torch.empty(0, dtype=torch.int64),
        max_queries=length,
        max_context=length,
    )
    cache = LayerCache(keys.contiguous(), values.contiguous())
    tokens = queries.transpose(1, 2).reshape(sequences * length, heads, size)
    found = paged_attention(tokens, cache, packed, scale=scale)
    return found.view(sequences, length, heads, size).transpose(1, 2)


def reference(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """The attention in float64."""
    found = functional.scaled_dot_product_attention(
        queries.double(),
        keys.double(),
        values.double(),
        is_causal=True,
        scale=scale,
        enable_gqa=True,
    )
    return found.to(queries.dtype)
