"""Floats of 8 bits: E4M3 (torch.float8_e4m3fn) and E5M2 (torch.float8_e5m2).

OCP 8-bit Floating Point Specification (OFP8) 1.0, with saturation: numbers beyond the largest
(448; 57344), infinities too, become the largest; NaN stays NaN; ties to even. A scale per tensor,
row or group brings the largest number to the format's largest.
"""

from __future__ import annotations

import torch
from torch import Tensor

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def largest(dtype: torch.dtype) -> float:
    """The largest finite number."""
    return torch.finfo(dtype).max


def scale(low: Tensor, high: Tensor, dtype: torch.dtype) -> Tensor:
    """What brings numbers between `low` and `high` into range, float32. Of nothing: 0."""
    return torch.maximum(low.abs(), high.abs()).float() / largest(dtype)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest numbers of the format, saturated."""
    # Clamped first: PyTorch's conversion makes NaN or infinity of numbers that do not fit.
    return x.float().clamp(-largest(dtype), largest(dtype)).to(dtype)


def encode(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """X / scale in the format."""
    return cast(x.float() / scale.float(), dtype)


def decode(codes: Tensor, scale: Tensor) -> Tensor:
    """Codes times scale, float32."""
    return codes.float() * scale.float()
