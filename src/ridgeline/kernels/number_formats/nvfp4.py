"""Blocks of 16 E2M1 numbers with an E4M3 scale each, and one float32 scale for the tensor: NVFP4.

    v ≈ code · s / S     S = 448 · 6 / max|v| of the tensor,  s = E4M3(S · max|v| / 6) of a block

S is stored as a factor, as compressed-tensors and NVIDIA's ModelOpt write it ("global scale"): with
it the largest block scale is E4M3's largest. Blocks whose scale would round to 0 get the smallest
number of E4M3 there is, so that a scale never divides by 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.number_formats import fp4, fp8

BLOCK = 16


def global_scale(largest: Tensor) -> Tensor:
    """[1] float32, from the largest magnitude of the tensor. Of a tensor of zeros: 1."""
    # Where the quotient overflows, so would every block's scale.
    exact = fp8.largest(fp8.E4M3) * fp4.LARGEST / largest.float()
    return torch.where(torch.isfinite(exact), exact, 1.0).reshape(1)


def scales(largest: Tensor, whole: Tensor) -> Tensor:
    """The blocks' scales, float8_e4m3fn.

    Args:
        largest: The largest magnitude of each block.
        whole: From `global_scale`.
    """
    exact = fp8.cast(whole * (largest.float() / fp4.LARGEST), fp8.E4M3)
    smallest = torch.finfo(fp8.E4M3).smallest_normal / 8
    return torch.where(exact.float() == 0, smallest, exact.float()).to(fp8.E4M3)


def encode(x: Tensor, scale: Tensor, whole: Tensor) -> Tensor:
    """Codes 0 to 15, uint8, of x over its block's scale.

    Args:
        x: Any shape that scale broadcasts to.
        scale: float8_e4m3fn.
        whole: [1] float32.
    """
    return fp4.cast(x.float() / (scale.float() / whole))


def decode(codes: Tensor, scale: Tensor, whole: Tensor) -> Tensor:
    """The numbers code · s / S, float32."""
    return fp4.value(codes) * (scale.float() / whole)
