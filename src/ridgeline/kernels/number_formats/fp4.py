"""Floats of 4 bits, E2M1: ±0, 0.5, 1, 1.5, 2, 3, 4, 6. The elements of MXFP4 and NVFP4.

OCP Microscaling Formats (MX) Specification 1.0, section 5.3.3: bit 3 is the sign, bits 2–1 the
exponent (bias 1), bit 0 the mantissa; no infinity, no NaN. Ties to even: to the mantissa 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes that the codes 0 to 7 stand for."""

LARGEST = 6.0

_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Between one code's magnitude and the next one's; a tie goes to the even code."""


def cast(x: Tensor) -> Tensor:
    """The codes 0 to 15 of the nearest numbers, uint8, saturated. NaN is not for this format.

    −0 and what rounds to it keep their sign, as the specification's rounding does.
    """
    magnitude = x.float().abs()
    codes = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
    for code, middle in enumerate(_MIDDLES):
        # From an even code up only beyond the middle; from an odd code up at the middle too.
        codes += magnitude > middle if code % 2 == 0 else magnitude >= middle
    return codes | torch.signbit(x).to(torch.uint8) << 3


def value(codes: Tensor) -> Tensor:
    """The numbers that codes stand for, float32; the sign of −0 is kept."""
    table = torch.tensor(MAGNITUDES + tuple(-m for m in MAGNITUDES), device=codes.device)
    return table[codes.long()]


def pack(codes: Tensor) -> Tensor:
    """[rows, n] codes as [rows, n / 2] bytes, the first in the low bits. n is even."""
    low, high = codes.unflatten(1, (-1, 2)).unbind(-1)
    return low | high << 4


def unpack(octets: Tensor) -> Tensor:
    """The codes that were packed."""
    return torch.stack((octets & 15, octets >> 4), -1).flatten(1)
