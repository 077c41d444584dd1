"""Matmuls of experts and the gradient of their weights, with an expert that has no rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.triton.grouped_matmul import gradient_of_weight, multiply

_ENDS = (9, 9, 290, 310, 311)  # more tiles than experts, and than whole tiles
_DEPTH = 321  # one more than tiles hold


def example() -> list[tuple[Tensor, Tensor]]:
    """Five experts of 321 x 136 in bfloat16: four rows are no expert's; rows end before experts.

    Then 20 rows of one of 40 x 24 in float32.
    """
    weight = torch.randn(5, _DEPTH, 136).bfloat16()
    found = [*_of_rows(_ENDS[-1] + 4, weight), *_of_rows(20, weight, step=2)]
    return [*found, *_of_rows(20, torch.randn(5, 40, 24))]


def _of_rows(count: int, weight: Tensor, step: int = 1) -> list[tuple[Tensor, Tensor]]:
    _, depth, outputs = weight.shape
    x = torch.randn(count, 2 * depth).to(weight.dtype)[:, : step * depth : step]
    dy = torch.randn(outputs, count).to(weight.dtype).T
    ends = torch.tensor([(one, 0) for one in _ENDS], dtype=torch.int32)[:, 0]  # in steps
    y, dweight = multiply(x, weight, ends), gradient_of_weight(x, dy, ends)
    exact = torch.zeros(count, outputs, dtype=torch.float64)
    gradients = []
    for first, last, one in zip((0, *_ENDS[:-1]), _ENDS, weight.double(), strict=True):
        exact[first:last] = x[first:last].double() @ one
        gradients.append(x[first:last].double().T @ dy[first:last].double())
    return [(y, exact), (dweight, torch.stack(gradients))]
