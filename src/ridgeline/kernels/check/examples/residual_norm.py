"""RMS and layer norm of a residual sum, forward and backward, at sizes that fill no tile."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.triton.residual_norm import backward, forward


def example() -> list[tuple[Tensor, Tensor]]:
    """Rows of 200 in bfloat16; the norm is compared with that in float64."""
    x, added, weight = (torch.randn(*shape).bfloat16() for shape in ((13, 200), (13, 200), (200,)))
    y, h, mean, rstd = forward(x, added, weight, None, 1e-6, 0.0, centred=False)
    backward(torch.randn(13, 200).bfloat16(), None, h, weight, mean, rstd, 0.0, centred=False)
    wide = h.double()
    exact = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    return [(y, exact)]
