"""Matmuls of experts and the gradient of their weights, with an expert that has no rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.triton.grouped_matmul import gradient_of_weight, multiply

_ENDS = (9, 9, 150, 170, 171)
_DEPTH = 321  # one more than tiles hold


def example() -> list[tuple[Tensor, Tensor]]:
    """Five experts of 321 x 136 over 171 rows in bfloat16."""
    x, weight = (torch.randn(shape).bfloat16() for shape in ((_ENDS[-1], _DEPTH), (5, _DEPTH, 136)))
    ends = torch.tensor(_ENDS, dtype=torch.int32)
    y = multiply(x, weight, ends)
    dy = torch.randn(_ENDS[-1], 136).bfloat16()
    dweight = gradient_of_weight(x, dy, ends)
    groups = list(zip((0, *_ENDS[:-1]), _ENDS, weight.double(), strict=True))
    exact = torch.cat([x[first:last].double() @ one for first, last, one in groups])
    gradient = torch.stack(
        [x[first:last].double().T @ dy[first:last].double() for first, last, _ in groups]
    )
    return [(y, exact), (dweight, gradient)]
