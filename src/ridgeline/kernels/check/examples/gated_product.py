"""The three gates, forward and backward, at sizes that fill no block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from ridgeline.kernels.triton.gated_product import backward, forward

_EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu, "gelu": gelu, "gelu_tanh": partial(gelu, approximate="tanh")
}  # fmt: skip


def example() -> list[tuple[Tensor, Tensor]]:
    """Two rows of 1,025 in bfloat16, a part of longer ones, and gates far from zero.

    And 50 numbers in float32, in which the two GeLUs are not the same.
    """
    far = torch.tensor([-1e15, -1e3, -90.0, 90.0, 1e3, 1e15]).bfloat16()
    found = []
    for name in _EXACT:
        rows = [torch.randn(2, size).bfloat16()[:, :1025] for size in (1025, 1124, 1148)]
        found += _of_kind(name, *rows)
        found += _of_kind(name, far, *(torch.randn(2, 6) * 1e-15).bfloat16())
        found += _of_kind(name, *torch.randn(3, 50))
    return found


def _of_kind(name: str, gate: Tensor, up: Tensor, dy: Tensor) -> list[tuple[Tensor, Tensor]]:
    y = forward(gate, up, name)
    found = backward(dy, gate, up, name)
    wide = [one.double().requires_grad_() for one in (gate, up)]
    exact = _EXACT[name](wide[0]) * wide[1]
    gradients = torch.autograd.grad(exact, wide, dy.double())
    return [(y, exact), *zip(found, gradients, strict=True)]
