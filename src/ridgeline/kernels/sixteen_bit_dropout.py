"""Dropout whose masks take sixteen random bits for an element.

torch draws a number in double precision for every element (`bernoulli_`), which on a CPU can take
longer than the attention or the layer that it drops from. A threshold among 65,536 values is as
good a coin for any probability in use: what is dropped is rounded to the nearest of them, and the
rest is scaled by just that, so that the expectation is exact.

It is plain PyTorch, so that it can stand in a user's script as it stands here.
"""

import math
from typing import Any

import torch

torch_dropout = torch.nn.functional.dropout
torch_attention = torch.nn.functional.scaled_dot_product_attention


def sixteen_bit_mask(like: Any, p: float) -> Any:
    """A mask like a tensor: 0 where an element is dropped, and what the others are scaled by."""
    threshold = round(p * 65_536)
    words = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    coins = words.view(torch.int16)[: like.numel()].view(like.shape)
    scale = torch.tensor(65_536 / (65_536 - threshold), dtype=like.dtype)
    return torch.where(coins >= threshold - 32_768, scale, torch.zeros_like(scale))


def takes_sixteen_bits(input: Any, p: float, training: bool) -> bool:  # noqa: A002 - as torch
    """Are elements of a dense float tensor on a CPU dropped, and not all of them?"""
    return (
        training
        and type(input) in (torch.Tensor, torch.nn.Parameter)
        and input.device.type == "cpu"
        and input.dtype in (torch.float32, torch.bfloat16)
        and input.layout is torch.strided
        and 0 < round(p * 65_536) < 65_536
    )


def sixteen_bit_dropout(
    input: Any,  # noqa: A002 - as torch calls it
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Any:
    """`torch.nn.functional.dropout` with cheaper coins on a CPU."""
    if not takes_sixteen_bits(input, p, training):
        return torch_dropout(input, p, training, inplace)
    mask = sixteen_bit_mask(input, p)
    return input.mul_(mask) if inplace else input * mask


def sixteen_bit_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """`torch.nn.functional.scaled_dot_product_attention`, where it drops weights on a CPU.

    There torch has no fused kernel for it, and computes what is written here.
    """
    if enable_gqa or (is_causal and attn_mask is not None):
        own = False
    else:
        own = takes_sixteen_bits(query, dropout_p, training=True)
    if not own:
        return torch_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if is_causal:
        square = torch.ones(scores.shape[-2:], dtype=torch.bool)
        scores = scores.masked_fill(square.tril().logical_not(), -math.inf)
    elif attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.ops.aten._safe_softmax(scores, -1)
    return (weights * sixteen_bit_mask(weights, dropout_p)).to(value.dtype) @ value
