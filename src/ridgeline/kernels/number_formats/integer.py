"""Integers of 2 to 8 bits: x ≈ (q − z) s, with −2^(b−1) ≤ q < 2^(b−1).

Symmetric: z = 0 and s = max|x| / ((2^b − 1) / 2), so that the whole range of levels is used and the
larger end may be cut by half a step. Affine: 0 is always one of the levels. Both as
compressed-tensors defines them (`quantization/utils/helpers.py`, `calculate_qparams`), and so is
the packing: 32 numbers in `bits` words of 32 bits, lowest bits first, across words.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def bounds(bits: int) -> tuple[int, int]:
    """The lowest and the highest level."""
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def symmetric_scale(low: Tensor, high: Tensor, bits: int) -> Tensor:
    """The step, float32, for numbers between `low` and `high`. A range of nothing has step 0."""
    return torch.maximum(low.abs(), high.abs()).float() / ((2**bits - 1) / 2)


def affine_scale(low: Tensor, high: Tensor, bits: int) -> Tensor:
    """The step, float32, for numbers between `low` and `high`, widened to reach 0."""
    return (high.clamp_min(0).float() - low.clamp_max(0).float()) / (2**bits - 1)


def zero_points(low: Tensor, scale: Tensor, bits: int) -> Tensor:
    """The levels that stand for 0, int8, given the range's lower end and the scale as stored."""
    lowest, highest = bounds(bits)
    exact = lowest - low.clamp_max(0).float() / scale.float()
    return exact.clamp_(lowest, highest).round_().to(torch.int8)


def encode(x: Tensor, scale: Tensor, zero: Tensor | None, bits: int) -> Tensor:
    """The nearest levels, int8, ties to even; numbers beyond the range are cut.

    Args:
        x: Any shape that scale and zero broadcast to.
        scale: The step.
        zero: The zero point of an affine format, in levels.
        bits: 2 to 8.
    """
    lowest, highest = bounds(bits)
    steps = x.float() / scale.float()
    if zero is not None:
        steps = steps + zero.float()
    return steps.clamp_(lowest, highest).round_().to(torch.int8)


def decode(levels: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """(q − z) s, float32."""
    steps = levels.float()
    if zero is not None:
        steps = steps - zero.float()
    return steps * scale.float()


def nearest(x: Tensor, scale: Tensor, zero: Tensor | None, bits: int) -> Tensor:
    """What `encode` and `decode` come to, float32, without the levels between them."""
    lowest, highest = bounds(bits)
    scale = scale.float()
    steps = x.float() / scale
    if zero is None:
        return steps.clamp_(lowest, highest).round_().mul_(scale)
    zero = zero.float()
    return steps.add_(zero).clamp_(lowest, highest).round_().sub_(zero).mul_(scale)


def pack(levels: Tensor, bits: int) -> Tensor:
    """[rows, n] int8 as [rows, ⌈n · bits / 32⌉] int32.

    q + 2^(bits−1), the first in the lowest bits. The last word's unused bits are 0.
    """
    rows, n = levels.shape
    octets = torch.zeros(rows, -(-n * bits // 32) * 4, dtype=torch.uint8, device=levels.device)
    unsigned = (levels.to(torch.int16) + 2 ** (bits - 1)).to(torch.uint8)
    eights = functional.pad(unsigned, (0, -n % 8)).unflatten(1, (-1, 8))
    # Eight numbers are `bits` whole bytes, the low ones of an int64.
    together = torch.zeros(eights.shape[:2], dtype=torch.int64, device=levels.device)
    for place in range(8):
        together |= eights[..., place].to(torch.int64) << place * bits
    filled = together[..., None].view(torch.uint8)[..., :bits].flatten(1)[:, : octets.shape[1]]
    octets[:, : filled.shape[1]] = filled
    return octets.view(torch.int32)


def unpack(words: Tensor, bits: int, n: int) -> Tensor:
    """[rows, ⌈n · bits / 32⌉] int32 as the [rows, n] int8 levels that were packed."""
    octets = words.contiguous().view(torch.uint8)
    levels = _of_octets(octets, bits) if 8 % bits == 0 else _across_octets(octets, bits)
    return levels[:, :n].contiguous()


def _of_octets(octets: Tensor, bits: int) -> Tensor:
    """Levels of which each byte holds a whole number, [rows, 8 / bits · octets] int8."""
    mask, half = 2**bits - 1, 2 ** (bits - 1)
    each = 8 // bits
    levels = torch.empty((*octets.shape, each), dtype=torch.int8, device=octets.device)
    unsigned = levels.view(torch.uint8)  # u − half in 8 bits is q in two's complement
    for place in range(each):
        unsigned[..., place] = (octets >> place * bits & mask).sub_(half)
    return levels.flatten(1)


def _across_octets(octets: Tensor, bits: int) -> Tensor:
    """Levels that lie across bytes, eight of them in `bits` bytes."""
    octets = functional.pad(octets, (0, -octets.shape[1] % bits)).unflatten(1, (-1, bits))
    together = functional.pad(octets, (0, 8 - bits)).view(torch.int64)
    levels = torch.empty((*together.shape[:2], 8), dtype=torch.int8, device=octets.device)
    for place in range(8):
        levels[..., place] = (together[..., 0] >> place * bits & 2**bits - 1) - 2 ** (bits - 1)
    return levels.flatten(1)
