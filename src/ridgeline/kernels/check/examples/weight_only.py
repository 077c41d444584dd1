"""Linear layers with weights of four and eight bits: one row, and more; nothing fills a tile."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.triton import linear_int4, linear_int8

_OUTPUTS, _GROUP = 37, 96
_FOUR_DEPTH, _EIGHT_DEPTH = 129 * 32, 65 * 16  # one chunk more than blocks hold


def example() -> list[tuple[Tensor, Tensor]]:
    """Each format for one row and for 18 in bfloat16, split over the depth where that is long.

    Before them a few rows in float32.
    """
    short = torch.randn(18, 100).bfloat16()
    few = torch.randint(-127, 128, (_OUTPUTS, 100)).to(torch.int8)
    scale, shift = (torch.rand(_OUTPUTS, 1) + 0.5) / 100, torch.randn(_OUTPUTS)
    found = [
        (
            linear_int8.linear(short, linear_int8.pack(few), scale.T.contiguous(), None, shift),
            _product(short, few, scale, torch.zeros_like(scale), shift),
        ),
        *_of_strided_rows(),
    ]
    for rows in (1, 18):
        wide, x = (
            torch.randn(rows, depth + 8).bfloat16()[:, :depth]
            for depth in (_FOUR_DEPTH, _EIGHT_DEPTH)
        )
        four, eight = (
            torch.randint(-most, most, (_OUTPUTS, depth)).to(torch.int8)
            for most, depth in ((7, _FOUR_DEPTH), (127, _EIGHT_DEPTH))
        )
        # Neighbours cancel nearly, so that sums in fewer bits than float32 are seen to be.
        for one, most in ((wide, None), (x, None), (four, 1), (eight, 20)):
            one[:, 1::2] = -0.875 * one[:, ::2] if most is None else one[:, ::2]
            if most is not None:
                one[:, 1::2] -= torch.randint_like(one[:, ::2], most + 1) * one[:, ::2].sign()
        floats = (eight.float() / 8).to(torch.float8_e4m3fn)
        bias = torch.randn(_OUTPUTS) / 50
        groups = _FOUR_DEPTH // _GROUP
        scales = (torch.rand(_OUTPUTS, groups) + 0.5) / _EIGHT_DEPTH
        zeros = torch.randint(-8, 8, (_OUTPUTS, groups)).to(torch.int8)
        one = scales[:, :1].contiguous()
        four_bits = linear_int4.linear(
            wide, linear_int4.pack(four), scales.T.contiguous(), zeros.T.contiguous(), bias
        )
        found += [
            (four_bits, _product(wide, four, scales, zeros, bias)),
            (
                linear_int8.linear(x, linear_int8.pack(eight), one.T.contiguous(), None, None),
                _product(x, eight, one, torch.zeros_like(one), torch.zeros(_OUTPUTS)),
            ),
            (
                linear_int8.linear(x, linear_int8.pack(floats), one.T.contiguous(), None, bias),
                _product(x, floats, one, torch.zeros_like(one), bias),
            ),
        ]
    return found


def _of_strided_rows() -> list[tuple[Tensor, Tensor]]:
    """Six rows in float32 whose numbers lie apart, for weights without zero points."""
    x = torch.randn(64, 2, 3).permute(1, 2, 0)
    weight, scales = torch.randint(-8, 8, (20, 64)).to(torch.int8), torch.rand(20, 2) + 0.5
    packed = linear_int8.pack_groups(scales)
    none, bias = torch.zeros(20, 2), torch.randn(20)
    exact = _product(x, weight, scales, none, bias)
    return [
        (linear_int4.linear(x, linear_int4.pack(weight), packed, None, bias), exact),
        (linear_int8.linear(x, linear_int8.pack(weight), packed, None, bias), exact),
    ]


def _product(x: Tensor, stored: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor) -> Tensor:
    """The product with widened weights in float64."""
    size = stored.shape[1] // scales.shape[1]
    wide_scales, wide_zeros = (one.double().repeat_interleave(size, 1) for one in (scales, zeros))
    weight = (stored.double() - wide_zeros) * wide_scales
    return x.double() @ weight.T + bias.double()
