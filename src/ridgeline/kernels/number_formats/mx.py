"""The formats MXFP4 and MXFP8: blocks of 32 numbers with a power of two as their scale.

OCP Microscaling Formats (MX) Specification 1.0. Section 6.3: the scale is
X = 2^(⌊log2(max|v|)⌋ − emax), emax being the exponent of the element format's largest number (E2M1:
2, E4M3: 8, E5M2: 15); v / X is rounded to nearest, ties to even, and saturated. Section 5.4.1: X is
stored as E8M0, the exponent plus 127 in a byte; 255 is NaN, which no finite block needs.

With ⌊·⌋, magnitudes above 1.5 · 2^k of E2M1 (1.75 of E4M3) are cut to the largest number.
compressed-tensors instead takes the next power of two for blocks whose largest magnitude is at
least 1.75 · 2^k (E2M1 and E4M3 alike): `round_up=True` does the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.number_formats import fp4, fp8

BLOCK = 32
BIAS = 127
LARGEST_EXPONENTS = {"e2m1": 2, "e4m3": 8, "e5m2": 15}
"""emax of the element formats (section 5.3)."""


def exponents(largest: Tensor, element: str, *, round_up: bool = False) -> Tensor:
    """The scales of blocks, as E8M0 bytes.

    Args:
        largest: The largest magnitude of each block, finite.
        element: "e2m1", "e4m3" or "e5m2".
        round_up: Round as compressed-tensors does, not as the specification.
    """
    # |v| = m · 2^e with ½ ≤ m < 1, so ⌊log2|v|⌋ = e − 1, exactly, of subnormal numbers too.
    mantissas, powers = torch.frexp(largest.float())
    floors = powers - 1
    if round_up:
        floors = floors + (mantissas >= 0.875)
    biased = (floors - LARGEST_EXPONENTS[element] + BIAS).clamp(0, 254)
    return torch.where(largest == 0, 0, biased).to(torch.uint8)


def powers_of_two(codes: Tensor) -> Tensor:
    """The scales that E8M0 bytes stand for, float32; 255 is NaN."""
    # A table: exact also of 2^−127, which is subnormal in float32.
    powers = [2.0 ** (code - BIAS) for code in range(255)]
    return torch.tensor([*powers, torch.nan], device=codes.device)[codes.int()]


def encode(x: Tensor, scale: Tensor, element: str) -> Tensor:
    """X over its block's scale, in the element format: uint8 codes of e2m1, or a float8 dtype.

    Args:
        x: Any shape that scale broadcasts to.
        scale: E8M0 bytes.
        element: "e2m1", "e4m3" or "e5m2".
    """
    # Exact by a power of two, but where it overflows or falls below all that the formats hold.
    steps = x.float() / powers_of_two(scale)
    if element == "e2m1":
        return fp4.cast(steps)
    return fp8.cast(steps, fp8.E4M3 if element == "e4m3" else fp8.E5M2)


def decode(codes: Tensor, scale: Tensor) -> Tensor:
    """Elements times scale, float32. uint8 codes are e2m1."""
    values = fp4.value(codes) if codes.dtype == torch.uint8 else codes.float()
    return values * powers_of_two(scale)
