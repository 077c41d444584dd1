"""SwiGLU, forward and backward, at sizes that fill no block."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.triton.gated_product import backward, forward


def example() -> list[tuple[Tensor, Tensor]]:
    """Two rows of 1,100 in bfloat16; the product is compared with that in float64."""
    gate, up, dy = (torch.randn(2, 1100).bfloat16() for _ in range(3))
    y = forward(gate, up, "silu")
    backward(dy, gate, up, "silu")
    return [(y, torch.nn.functional.silu(gate.double()) * up.double())]
