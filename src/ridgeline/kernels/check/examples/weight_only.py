"""Linear layers with weights of four and eight bits: one row, and more; nothing fills a tile."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.triton import linear_int4, linear_int8

_OUTPUTS, _DEPTH, _GROUP = 37, 1152, 64


def example() -> list[tuple[Tensor, Tensor]]:
    """Each format for one row and for 18 in bfloat16, which are split over the depth."""
    found = []
    for rows in (1, 18):
        x = torch.randn(rows, _DEPTH + 8).bfloat16()[:, :_DEPTH]
        four = torch.randint(-8, 8, (_OUTPUTS, _DEPTH)).to(torch.int8)
        eight = torch.randint(-127, 128, (_OUTPUTS, _DEPTH)).to(torch.int8)
        floats = (torch.randn(_OUTPUTS, _DEPTH) * 8).to(torch.float8_e4m3fn)
        bias = torch.randn(_OUTPUTS)
        groups = _DEPTH // _GROUP
        scales = (torch.rand(_OUTPUTS, groups) + 0.5) / _DEPTH
        zeros = torch.randint(-8, 8, (_OUTPUTS, groups)).to(torch.int8)
        one = scales[:, :1].contiguous()
        four_bits = linear_int4.linear(
            x, linear_int4.pack(four), scales.T.contiguous(), zeros.T.contiguous(), bias
        )
        found += [
            (four_bits, _product(x, four, scales, zeros, bias)),
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


def _product(x: Tensor, stored: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor) -> Tensor:
    """The product with widened weights in float64."""
    size = stored.shape[1] // scales.shape[1]
    wide_scales, wide_zeros = (one.double().repeat_interleave(size, 1) for one in (scales, zeros))
    weight = (stored.double() - wide_zeros) * wide_scales
    return x.double() @ weight.T + bias.double()
