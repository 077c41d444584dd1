"""How far a result is from the exact one, beside what rounding the exact one costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

TIMES_THE_FLOOR = {torch.float16: 1.1, torch.bfloat16: 1.1, torch.float32: 16.0}
"""A float32 result is computed in float32 too: each of its steps rounds like the last."""


def error_of(found: Tensor, exact: Tensor) -> float:
    """Relative error in the norm of all elements together."""
    found, exact = found.detach().double(), exact.detach().double()
    away, size = (found - exact).norm(), exact.norm()
    return float(away / size) if size else float(away)


def assert_rounded_once(found: Tensor, exact: Tensor, name: str = "") -> None:
    """The error is that of rounding to the result's dtype, and no more."""
    floor = error_of(exact.to(found.dtype), exact)
    limit = TIMES_THE_FLOOR[found.dtype] * max(floor, torch.finfo(found.dtype).eps / 4)
    assert error_of(found, exact) <= limit, (name, error_of(found, exact), floor)


def exact_gradients(
    compute: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], upper: Sequence[Tensor]
) -> list[Tensor]:
    """Gradients in float64 of a reference, of the same numbers."""
    leaves = [one.detach().double().requires_grad_() for one in inputs]
    results = compute(*leaves)
    given = [one.detach().double() for one in upper]
    return list(torch.autograd.grad(list(results), leaves, given))


def random(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).to(device)
