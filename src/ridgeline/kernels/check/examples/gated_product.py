"""SwiGLU, forward and backward, at sizes that fill no block."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.triton.gated_product import backward, forward


def example() -> list[tuple[Tensor, Tensor]]:
    """Two rows of 1,100 in bfloat16, a part of longer ones; with gradients from float64."""
    gate, up, dy = (torch.randn(2, size).bfloat16()[:, :1100] for size in (1100, 1124, 1148))
    y = forward(gate, up, "silu")
    found = backward(dy, gate, up, "silu")
    wide = [one.double().requires_grad_() for one in (gate, up)]
    exact = torch.nn.functional.silu(wide[0]) * wide[1]
    gradients = torch.autograd.grad(exact, wide, dy.double())
    return [(y, exact), *zip(found, gradients, strict=True)]
