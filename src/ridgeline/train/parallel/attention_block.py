"""Attention of some queries to some keys, with the log-sum-exp that merging needs; its backward.

torch's own flash attention (Dao, arXiv 2307.08691) in both directions, called below autograd:
backward takes an output and a log-sum-exp that may cover more keys than this block's, and then
gives this block's share of the gradients, since the probabilities it recomputes are
exp(scores − lse). The kernel for CUDA takes no mask.

Shapes: queries [B, H, Q, D], keys and values [B, G, K, D], H a multiple of G.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ridgeline.errors import InputError

_aten = torch.ops.aten


class BlockResult(NamedTuple):
    """Output [B, H, Q, D] and log-sum-exp [B, H, Q] in fp32; -inf where a query sees no key."""

    output: Tensor
    lse: Tensor


class BlockGradients(NamedTuple):
    """Of queries, keys and values."""

    query: Tensor
    key: Tensor
    value: Tensor


def attend_block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool,
    mask: Tensor | None,
    scale: float,
) -> BlockResult:
    """One block forward. `mask` [B, 1, Q, K] is true where a key is seen."""
    groups = query.shape[1] // key.shape[1]
    key, value = _for_each_head(key, groups), _for_each_head(value, groups)
    if query.device.type == "cpu":
        seen = _with_triangle(mask, causal)
        output, lse = _aten._scaled_dot_product_flash_attention_for_cpu(
            query,
            key,
            value,
            is_causal=causal and mask is None,
            attn_mask=_bias(seen, query.dtype),
            scale=scale,
        )
        if seen is not None:
            nothing = ~seen.any(dim=-1)
            lse = lse.masked_fill(nothing, -torch.inf)
        return BlockResult(output, lse)
    _refuse_on_cuda(query, mask)
    found = _aten._scaled_dot_product_flash_attention(
        query, key, value, is_causal=causal, scale=scale
    )
    return BlockResult(found[0], found[1])


def block_gradients(
    upstream: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    result: BlockResult,
    *,
    causal: bool,
    mask: Tensor | None,
    scale: float,
) -> BlockGradients:
    """This block's share of the gradients, given the output and log-sum-exp over all keys."""
    groups = query.shape[1] // key.shape[1]
    each_key, each_value = _for_each_head(key, groups), _for_each_head(value, groups)
    if query.device.type == "cpu":
        seen = _with_triangle(mask, causal)
        found = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            upstream,
            query,
            each_key,
            each_value,
            result.output,
            result.lse,
            0.0,
            causal and mask is None,
            attn_mask=_bias(seen, query.dtype),
            scale=scale,
        )
    else:
        none = torch.empty(0, dtype=torch.int64, device=query.device)
        found = _aten._scaled_dot_product_flash_attention_backward(
            upstream.contiguous(),
            query.contiguous(),
            each_key.contiguous(),
            each_value.contiguous(),
            result.output.contiguous(),
            result.lse.contiguous(),
            none,
            none,
            query.shape[2],
            key.shape[2],
            0.0,
            causal,
            none,
            none,
            scale=scale,
        )
    return BlockGradients(found[0], _over_heads(found[1], groups), _over_heads(found[2], groups))


def _for_each_head(tensor: Tensor, groups: int) -> Tensor:
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=1)


def _over_heads(gradient: Tensor, groups: int) -> Tensor:
    """Summed over the query heads that share a key-value head, in fp32."""
    return gradient if groups == 1 else gradient.float().unflatten(1, (-1, groups)).sum(dim=2)


def _with_triangle(mask: Tensor | None, causal: bool) -> Tensor | None:
    """The kernel takes a mask or makes a triangle, not both."""
    if mask is None or not causal:
        return mask
    triangle = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril()
    return mask & triangle


def _bias(seen: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores: nothing, or minus infinity."""
    if seen is None:
        return None
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def _refuse_on_cuda(query: Tensor, mask: Tensor | None) -> None:
    """What torch's flash attention for CUDA does not do."""
    if mask is not None:
        raise InputError(
            "data.document_mask with layout.cp > 1 works on CPUs alone so far: the CUDA kernel"
            " takes no mask; leave one of the two out"
        )
    if query.dtype not in {torch.bfloat16, torch.float16} or query.shape[-1] % 8:
        raise InputError(
            "layout.cp on CUDA: flash attention takes bf16 or fp16 and head sizes that are"
            f" multiples of 8, not {query.dtype} of {query.shape[-1]}; use bf16"
        )
