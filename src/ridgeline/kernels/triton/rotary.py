"""Rotary position embedding on a GPU: what `kernels/rotary.py` calls.

A program takes one token: its cosines and sines are read once for all heads of queries and keys.
"""

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_ELEMENTS_OF_A_TILE = 1024


@triton.jit
def rotary_kernel(
    new_queries: tl.tensor,
    new_keys: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    length: tl.tensor,
    query_heads: tl.tensor,
    key_heads: tl.tensor,
    new_query_batch: tl.tensor,
    new_query_head: tl.tensor,
    new_query_token: tl.tensor,
    new_key_batch: tl.tensor,
    new_key_head: tl.tensor,
    new_key_token: tl.tensor,
    query_batch: tl.tensor,
    query_head: tl.tensor,
    query_token: tl.tensor,
    key_batch: tl.tensor,
    key_head: tl.tensor,
    key_token: tl.tensor,
    cos_batch: tl.tensor,
    cos_token: tl.tensor,
    sin_batch: tl.tensor,
    sin_token: tl.tensor,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BACKWARDS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Turn every head of one token; names in `_batch`, `_head`, `_token` are strides."""
    batch = (tl.program_id(0) // length).to(tl.int64)
    token = (tl.program_id(0) % length).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    if INTERLEAVED:
        first = 2 * pair
        second = 2 * pair + 1
    else:
        first = pair
        second = pair + HALF
    inside = pair < HALF
    at_cos = cos + batch * cos_batch + token * cos_token
    at_sin = sin + batch * sin_batch + token * sin_token
    cos_1 = tl.load(at_cos + first, mask=inside, other=0.0).to(tl.float32)[None, :]
    cos_2 = tl.load(at_cos + second, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin_1 = tl.load(at_sin + first, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin_2 = tl.load(at_sin + second, mask=inside, other=0.0).to(tl.float32)[None, :]
    if BACKWARDS:
        kept = sin_1
        sin_1 = -sin_2
        sin_2 = -kept
    for start in range(0, query_heads, BLOCK_HEADS):
        heads = start + tl.arange(0, BLOCK_HEADS)
        mask = (heads < query_heads)[:, None] & inside[None, :]
        source = queries + batch * query_batch + token * query_token + heads[:, None] * query_head
        a = tl.load(source + first[None, :], mask=mask, other=0.0).to(tl.float32)
        b = tl.load(source + second[None, :], mask=mask, other=0.0).to(tl.float32)
        target = new_queries + batch * new_query_batch + token * new_query_token
        target += heads[:, None] * new_query_head
        kind = new_queries.dtype.element_ty
        tl.store(target + first[None, :], (a * cos_1 - b * sin_1).to(kind), mask=mask)
        tl.store(target + second[None, :], (b * cos_2 + a * sin_2).to(kind), mask=mask)
    for start in range(0, key_heads, BLOCK_HEADS):
        heads = start + tl.arange(0, BLOCK_HEADS)
        mask = (heads < key_heads)[:, None] & inside[None, :]
        source = keys + batch * key_batch + token * key_token + heads[:, None] * key_head
        a = tl.load(source + first[None, :], mask=mask, other=0.0).to(tl.float32)
        b = tl.load(source + second[None, :], mask=mask, other=0.0).to(tl.float32)
        target = new_keys + batch * new_key_batch + token * new_key_token
        target += heads[:, None] * new_key_head
        kind = new_keys.dtype.element_ty
        tl.store(target + first[None, :], (a * cos_1 - b * sin_1).to(kind), mask=mask)
        tl.store(target + second[None, :], (b * cos_2 + a * sin_2).to(kind), mask=mask)


def turn(
    results: tuple[Tensor, Tensor],
    inputs: tuple[Tensor, Tensor],
    angles: tuple[Tensor, Tensor],
    *,
    interleaved: bool,
    backwards: bool,
) -> None:
    """Fill the results with the inputs turned by angles, or by the negative angles.

    Args:
        results: For queries and keys, elements of a head side by side.
        inputs: Queries [B, H, T, D] and keys [B, KV, T, D].
        angles: cos and sin, [B or 1, T, D].
        interleaved: Whether neighbours form a pair.
        backwards: Whether to turn back, as gradients are.
    """
    batch, query_heads, length, dim = inputs[0].shape
    if not batch * length * dim:
        return
    queries, keys, cos, sin = (_elements_together(one) for one in (*inputs, *angles))
    block = triton.next_power_of_2(dim // 2)
    rotary_kernel[(batch * length,)](
        *results,
        queries,
        keys,
        cos,
        sin,
        length,
        query_heads,
        keys.shape[1],
        *results[0].stride()[:3],
        *results[1].stride()[:3],
        *queries.stride()[:3],
        *keys.stride()[:3],
        cos.stride(0) if cos.shape[0] == batch else 0,
        cos.stride(1),
        sin.stride(0) if sin.shape[0] == batch else 0,
        sin.stride(1),
        HALF=dim // 2,
        INTERLEAVED=interleaved,
        BACKWARDS=backwards,
        BLOCK_HEADS=max(1, _ELEMENTS_OF_A_TILE // block),
        BLOCK=block,
        num_warps=4,
        enable_fp_fusion=True,
    )


def _elements_together(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
