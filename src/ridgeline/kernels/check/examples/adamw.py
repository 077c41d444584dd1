"""One step of AdamW over tensors of unlike sizes, which the kernel knows by their addresses."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.triton.adamw import step

_SIZES = (1, 1000, 17_000, 40, 3)  # five tensors in a table of eight rows
_RATE, _BETAS, _EPS, _DECAY, _NUMBER = 1e-2, (0.9, 0.99), 0.1, 0.1, 3


def example() -> list[tuple[Tensor, Tensor]]:
    """Five tensors in bfloat16 with sums in float32, gradients scaled; then all in float32."""
    return [*_of_kind(torch.bfloat16), *_of_kind(torch.float32)]


def _of_kind(dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    tensors = [
        (
            torch.randn(size).to(dtype),
            torch.randn(size).to(dtype),
            torch.randn(size),
            torch.rand(size) + 0.1,
        )
        for size in _SIZES
    ]
    scale = torch.tensor(0.5) if dtype == torch.bfloat16 else None
    exact = [_stepped(*one, 1.0 if scale is None else 0.5) for one in tensors]
    step(tensors, scale, _RATE, *_BETAS, _EPS, _DECAY, _NUMBER)
    return [
        pair
        for (p, _, m, v), wanted in zip(tensors, exact, strict=True)
        for pair in zip((p, m, v), wanted, strict=True)
    ]


def _stepped(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Kingma and Ba, 1412.6980, algorithm 1, with decay apart (1711.05101), in float64."""
    p, g, m, v = (one.double() for one in (p, g, m, v))
    g = g * scale
    m = _BETAS[0] * m + (1 - _BETAS[0]) * g
    v = _BETAS[1] * v + (1 - _BETAS[1]) * g * g
    mean, square = m / (1 - _BETAS[0] ** _NUMBER), v / (1 - _BETAS[1] ** _NUMBER)
    return p * (1 - _RATE * _DECAY) - _RATE * mean / (square.sqrt() + _EPS), m, v
