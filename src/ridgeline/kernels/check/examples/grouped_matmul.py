"""Matmuls of experts and the gradient of their weights, with an expert that has no rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.triton.grouped_matmul import gradient_of_weight, multiply

_ENDS = (9, 9, 150, 171)


def example() -> list[tuple[Tensor, Tensor]]:
    """Four experts of 328 x 136 over 171 rows in bfloat16."""
    x, weight = torch.randn(_ENDS[-1], 328).bfloat16(), torch.randn(4, 328, 136).bfloat16()
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
