"""Matmuls of experts and the gradient of their weights, with an expert that has no rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.triton.grouped_matmul import gradient_of_weight, multiply

_ENDS = (9, 9, 150, 170, 171)
_DEPTH = 321  # one more than tiles hold


def example() -> list[tuple[Tensor, Tensor]]:
    """Five experts of 321 x 136 in bfloat16: four rows are no expert's; rows end before experts."""
    weight = torch.randn(5, _DEPTH, 136).bfloat16()
    return [*_of_rows(_ENDS[-1] + 4, weight), *_of_rows(20, weight)]


def _of_rows(count: int, weight: Tensor) -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(count, 2 * _DEPTH).bfloat16()[:, ::2]
    dy = torch.randn(136, count).bfloat16().T
    ends = torch.tensor(_ENDS, dtype=torch.int32)
    y, dweight = multiply(x, weight, ends), gradient_of_weight(x, dy, ends)
    exact = torch.zeros(count, 136, dtype=torch.float64)
    gradients = []
    for first, last, one in zip((0, *_ENDS[:-1]), _ENDS, weight.double(), strict=True):
        exact[first:last] = x[first:last].double() @ one
        gradients.append(x[first:last].double().T @ dy[first:last].double())
    return [(y, exact), (dweight, torch.stack(gradients))]
