"""AdamW over many tensors in one launch (Loshchilov and Hutter, 1711.05101, algorithm 2).

    m ← β₁ m + (1 - β₁) g          v ← β₂ v + (1 - β₂) g²
    p ← (1 - η λ) p - η / (1 - β₁ᵗ) · m / (√(v / (1 - β₂ᵗ)) + ε)

Everything is float32 and stored once; `torch.optim.AdamW` computes the same. Gradients may be
multiplied by a number that lies on the device, such as what clips them by their norm, so that
clipping costs no pass of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels.arguments import check_floats, wide
from ridgeline.kernels.triton import takes

_OPERATORS = torch.library.Library("ridgeline", "FRAGMENT")
_OPERATORS.define(
    "adamw_step(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] means,"
    " Tensor(c!)[] squares, Tensor? gradient_scale, float learning_rate, float beta_1,"
    " float beta_2, float eps, float weight_decay, int step) -> ()"
)
Four = tuple[Tensor, Tensor, Tensor, Tensor]


@torch.no_grad()
def adamw_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    *,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
    gradient_scale: Tensor | None = None,
) -> None:
    """Change parameters, means and squares in place; all four lists go together.

    Args:
        parameters: Any shapes and float dtypes, dense; what dtypes go together is one launch.
        gradients: As the parameters; any strides.
        means: Running means of gradients, laid out as the parameters.
        squares: Running means of their squares, the same.
        learning_rate: η of the formula above.
        betas: β₁ and β₂.
        eps: ε.
        weight_decay: λ.
        step: t, 1 at the first step.
        gradient_scale: One float32 on the device that gradients are multiplied by.

    Raises:
        InputError: Lists of several lengths, tensors of several shapes or layouts or that are no
            floats, a parameter twice, a step below 1, betas outside of 0 to 1.
    """
    lengths = {len(one) for one in (parameters, gradients, means, squares)}
    if len(lengths) != 1 or step < 1:
        raise InputError(f"AdamW at step {step} over lists of {sorted(lengths)}; give one length")
    if not all(0 <= beta < 1 for beta in betas):
        raise InputError(f"AdamW with betas {betas}; give 0 or more, below 1")
    if len({id(one) for one in parameters}) < len(parameters):
        raise InputError("AdamW was given a parameter twice; give each once")
    if gradient_scale is not None and gradient_scale.numel() != 1:
        raise InputError(f"gradient_scale is {tuple(gradient_scale.shape)}; give one number")
    for p, g, m, v in zip(parameters, gradients, means, squares, strict=True):
        if g is None:
            raise InputError(f"a parameter {tuple(p.shape)} has no gradient; leave it out")
        check_floats("AdamW", parameter=p, gradient=g, mean=m, square=v)
        alike = p.shape == g.shape == m.shape == v.shape
        if not alike or not p.stride() == m.stride() == v.stride():
            raise InputError(
                f"a parameter {tuple(p.shape)} has a gradient {tuple(g.shape)} and means"
                f" {tuple(m.shape)} and {tuple(v.shape)}; give one shape and one layout"
            )
    torch.ops.ridgeline.adamw_step(
        parameters,
        gradients,
        means,
        squares,
        gradient_scale,
        learning_rate,
        *betas,
        eps,
        weight_decay,
        step,
    )


def adamw_reference(
    tensors: Four,
    scale: Tensor | None,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    eps: float,
    weight_decay: float,
    step: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """New parameter, mean and square of one tensor in PyTorch; float64 stays float64."""
    dtype = wide(tensors[0].dtype)
    p, g, m, v = (one.to(dtype) for one in tensors)
    if scale is not None:
        g = g * scale.to(dtype)
    m = m + (1 - beta_1) * (g - m)
    v = beta_2 * v + (1 - beta_2) * g * g
    root = v.sqrt() / (1 - beta_2**step) ** 0.5 + eps
    p = p * (1 - learning_rate * weight_decay) - learning_rate / (1 - beta_1**step) * m / root
    return p, m, v


def _step(
    parameters: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    scale: Tensor | None,
    *numbers: Any,
) -> None:
    together = list(zip(parameters, gradients, means, squares, strict=True))
    together = [tensors for tensors in together if tensors[0].numel()]
    by_kernel = [tensors for tensors in together if all(takes(one) for one in tensors)]
    if by_kernel:
        from ridgeline.kernels.triton import adamw as kernel

        for alike in _of_one_kind(by_kernel):
            kernel.step(alike, scale, *numbers)
    for tensors in together:
        if all(takes(one) for one in tensors):
            continue
        new = adamw_reference(tensors, scale, *numbers)
        for old, value in zip((tensors[0], *tensors[2:]), new, strict=True):
            old.copy_(value)


def _of_one_kind(together: list[Four]) -> Iterator[list[Four]]:
    """Tensors whose dtypes are the same; gradients as their parameters lie."""
    kinds: dict[tuple[object, ...], list[Four]] = defaultdict(list)
    for p, g, m, v in together:
        if not _is_dense(p):
            raise InputError(f"a parameter {tuple(p.shape)} has gaps in memory; make it contiguous")
        like = g if g.stride() == p.stride() else torch.empty_like(p, dtype=g.dtype).copy_(g)
        kinds[p.device, *(one.dtype for one in (p, g, m, v))].append((p, like, m, v))
    yield from kinds.values()


def _is_dense(x: Tensor) -> bool:
    """Whether elements fill one stretch of memory, in any order."""
    steps = zip(x.stride(), x.shape, strict=True)
    expected = 1
    for stride, size in sorted(one for one in steps if one[1] > 1):
        if stride != expected:
            return False
        expected *= size
    return True


_OPERATORS.impl("adamw_step", _step, "CompositeExplicitAutograd")


@torch.library.register_fake("ridgeline::adamw_step")
def _step_shapes(*_: object) -> None:
    return None
