"""Muon's step over many matrices (Jordan et al., "Muon: an optimizer for hidden layers", 2024).

    m ← m + (1 - μ)(g - m)          u = g + μ (m - g), or m without Nesterov's step
    X₀ = u / ‖u‖                    A = X Xᵀ,  X ← a X + (b A + c A²) X, some times
    p ← (1 - η λ) p - η √max(1, rows / columns) · X

`torch.optim.Muon` computes the same, a matrix at a time. Here all matrices of one shape go through
each product together, momenta change in one launch, and A and b A + c A², which are symmetric, are
computed on one side of the diagonal and written on both: of large square matrices two thirds of the
arithmetic are left.
"""

# ruff: noqa: ARG001  (torch calls shapes and contexts by one signature)

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels.arguments import check_floats
from ridgeline.kernels.triton import takes

COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""a, b and c of the iteration; torch's too."""
_OPERATORS = torch.library.Library("ridgeline", "FRAGMENT")
_OPERATORS.define("symmetric_product(Tensor x, float plus, float product) -> Tensor")


@torch.no_grad()
def muon_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momenta: Sequence[Tensor],
    *,
    learning_rate: float,
    momentum: float = 0.95,
    nesterov: bool = True,
    weight_decay: float = 0.1,
    num_iterations: int = 5,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Change parameters and momenta in place.

    Args:
        parameters: Matrices; those of one shape, dtype and device go together.
        gradients: As the parameters.
        momenta: As the parameters, zeros at first.
        learning_rate: η of the formula above.
        momentum: μ.
        nesterov: Whether u looks ahead.
        weight_decay: λ.
        num_iterations: Of the iteration.
        dtype: What the iteration computes in.

    Raises:
        InputError: Lists of several lengths, what is no matrix, or gradients unlike parameters.
    """
    lengths = {len(one) for one in (parameters, gradients, momenta)}
    if len(lengths) != 1:
        raise InputError(f"Muon over lists of {sorted(lengths)}; give one length")
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, (one, *others) in enumerate(zip(parameters, gradients, momenta, strict=True)):
        if one.dim() != 2:
            raise InputError(f"Muon steps matrices; a parameter is {tuple(one.shape)}")
        check_floats("Muon", parameter=one)
        if any((other.shape, other.dtype) != (one.shape, one.dtype) for other in others):
            told = " and ".join(f"{other.dtype} {tuple(other.shape)}" for other in others)
            raise InputError(
                f"a parameter {one.dtype} {tuple(one.shape)} has a gradient and a momentum"
                f" {told}; give them alike".replace("torch.", "")
            )
        if one.numel():
            groups[one.shape, one.dtype, one.device].append(number)
    for numbers in groups.values():
        p, g, m = ([one[number] for number in numbers] for one in (parameters, gradients, momenta))
        torch._foreach_lerp_(m, g, 1 - momentum)
        updates = torch._foreach_lerp(g, m, momentum) if nesterov else m
        turned = orthogonalise(torch.stack(list(updates)).to(dtype), num_iterations)
        rows, columns = p[0].shape
        torch._foreach_mul_(p, 1 - learning_rate * weight_decay)
        rate = -learning_rate * max(1.0, rows / columns) ** 0.5
        torch._foreach_add_(p, list(turned.to(p[0].dtype).unbind()), alpha=rate)


def orthogonalise(x: Tensor, num_iterations: int = 5, eps: float = 1e-7) -> Tensor:
    """Matrices [B, m, n] with singular values near 1, the singular vectors kept."""
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(eps)
    a, b, c = COEFFICIENTS
    for _ in range(num_iterations):
        gram = torch.ops.ridgeline.symmetric_product(x, 0.0, 1.0)
        update = torch.ops.ridgeline.symmetric_product(gram, b, c)
        x = torch.baddbmm(x, update, x, beta=a)
    return x.transpose(1, 2) if tall else x


def symmetric_product_reference(x: Tensor, plus: float, product: float) -> Tensor:
    """Compute product · X Xᵀ + plus · X of [B, m, n]; with plus, X is square and symmetric."""
    found = product * (x @ x.transpose(1, 2))
    return found + plus * x if plus else found


def _product(x: Tensor, plus: float, product: float) -> Tensor:
    if takes(x):
        from ridgeline.kernels.triton import muon as kernel

        return kernel.symmetric_product(x, plus, product)
    return symmetric_product_reference(x, plus, product)


_OPERATORS.impl("symmetric_product", _product, "CompositeExplicitAutograd")


@torch.library.register_fake("ridgeline::symmetric_product")
def _product_shape(x: Tensor, plus: float, product: float) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], x.shape[1])
