"""FlashAttention, forward and backward, causal with a window, at sizes that fill no tile."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.attention_mask import AttentionMask
from ridgeline.kernels.flash_attention import flash_attention, flash_attention_reference
from ridgeline.kernels.triton import flash_backward, flash_forward

KERNELS = (flash_forward, flash_backward)
"""Where the kernels stand, which are compiled; the operator loads them when it is called."""


def example() -> list[tuple[Tensor, Tensor]]:
    """Two heads of 64 that share keys, in bfloat16; all is compared with float64."""
    mask = AttentionMask(causal=True, window=50)
    leaves = [torch.randn(1, heads, 70, 64).bfloat16().requires_grad_() for heads in (2, 1, 1)]
    out, log_sums = flash_attention(*leaves, mask=mask)
    upper = torch.randn(out.shape).bfloat16()
    out.backward(upper)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = flash_attention_reference(*wide, mask=mask)
    exact.out.backward(upper.double())
    return [(out, exact.out), (log_sums, exact.log_sums)]
