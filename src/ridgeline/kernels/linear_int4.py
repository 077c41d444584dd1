"""Linear layers with 4-bit weights in groups and activations as they come ("weight-only").

    out[m, o] = Σ_g s[o, g] · Σ_{k in g} x[m, k] (q[o, k] − z[o, g]) + b[o]     −8 ≤ q ≤ 7

One scale (and zero point) per output and `group` weights along the depth. Equal to multiplying by
the dequantised weight (q − z) s, but for the order of float32 roundings. Nibbles are widened in
registers by one table look-up each: `cpu/linear_int4.cpp`. The operator's schema is the 8-bit one's
and stands with it.

P panels of 32 outputs, G groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels.cpu.build import load
from ridgeline.kernels.linear import linear_reference, rows_by_panel
from ridgeline.kernels.linear_int8 import dequantise


def quantise(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Rounded to the nearest level: ([outputs, depth] int8 in −8 … 7, [outputs, G] bfloat16).

    The scale is the group's largest magnitude over 7.5, so that all 16 levels are used; it is
    rounded to bfloat16 first and the weights to its levels, so that nothing is lost twice.
    """
    _check(weight.shape[1], group)
    wide = weight.float().unflatten(1, (-1, group))
    scales = (wide.abs().amax(2).clamp_min(1e-12) / 7.5).bfloat16()
    levels = (wide / scales.float()[..., None]).round_().clamp_(-8, 7)
    return levels.flatten(1).to(torch.int8), scales


def pack(quantised: Tensor) -> Tensor:
    """[outputs, depth] int8 in −8 … 7 as panels [P, depth / 4, 64] uint8.

    On a GPU rows stay rows (`triton/linear_int4.py`), and so for the functions below. Scales and
    zero points are packed by `linear_int8.pack_groups`.

    Raises:
        InputError: The depth is no multiple of 4 (on a GPU 32), or the CPU kernels cannot be
            compiled.
    """
    if quantised.is_cuda:
        from ridgeline.kernels.triton import linear_int4 as gpu

        return gpu.pack(quantised)
    load("linear_int4")
    _check(quantised.shape[1], 4)
    # [P, half, output, depth / 4, pair, parity] → nibbles (pair, half) of words (output, parity)
    parts = rows_by_panel(quantised).unflatten(1, (2, 16)).unflatten(3, (-1, 2, 2))
    nibbles = (parts.permute(0, 3, 4, 1, 2, 5).flatten(4).flatten(2, 3) + 8).to(torch.uint8)
    low, high = (nibbles[:, :, n] | nibbles[:, :, n + 1] << 4 for n in (0, 2))
    return torch.stack((low, high), -1).flatten(2)


def unpack(panels: Tensor, outputs: int) -> Tensor:
    """The quantised weight that was packed, int8."""
    if panels.is_cuda:
        from ridgeline.kernels.triton import linear_int4 as gpu

        return gpu.unpack(panels)
    low, high = panels.unflatten(2, (32, 2)).unbind(-1)
    nibbles = torch.stack((low & 15, low >> 4, high & 15, high >> 4), 2).to(torch.int8) - 8
    parts = nibbles.unflatten(2, (2, 2)).unflatten(4, (16, 2)).permute(0, 3, 4, 1, 2, 5)
    return parts.flatten(3).flatten(0, 2)[:outputs].contiguous()


def linear(
    x: Tensor,
    panels: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    bias: Tensor | None,
    outputs: int,
) -> Tensor:
    """[..., depth] to [..., outputs], in x's dtype: bfloat16 or float32.

    Args:
        x: Any number of rows.
        panels: From `pack`.
        scales: From `linear_int8.pack_groups`, float32 or bfloat16.
        zeros: Zero points laid out as the scales, int8 in −8 … 7; None: symmetric.
        bias: [outputs] float32.
        outputs: The weight's number of outputs.
    """
    if x.is_cuda:
        from ridgeline.kernels.triton import linear_int4 as gpu

        return gpu.linear(x, panels, scales, zeros, bias)
    return torch.ops.ridgeline.linear_int4.default(x, panels, scales, zeros, bias, outputs, False)


def reference(
    x: Tensor, quantised: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None
) -> Tensor:
    """The layer over the dequantised weight, in float64."""
    return linear_reference(x, dequantise(quantised, scales, zeros), bias)


def _check(depth: int, group: int) -> None:
    if depth % group:
        raise InputError(
            f"int4: {depth} input features are no multiple of a group of {group}; "
            "choose a --group-size that divides them"
        )
