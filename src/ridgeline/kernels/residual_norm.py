"""Normalisation of a residual sum for training: RMS or layer norm, with every gradient.

    h = x + residual                                   the sum that the next layer adds to
    y = (h - μ) / √(mean((h - μ)²) + ε) · (offset + w) + b          over the last dimension

μ is 0 for root mean square normalisation (Zhang and Sennrich, 1910.07467, eq. 4) and the mean of h
for layer normalisation (Ba et al., 1607.06450, eq. 3). With x̂ = (h - μ) / σ, g = dy · (offset + w)

    dx = dresidual = (g - mean(g)·[μ] - x̂ · mean(g · x̂)) / σ + dh
    dw = Σ rows dy · x̂          db = Σ rows dy

h is rounded to x's dtype, as a model that keeps it does; all else is float32 and rounded once.
One pass over memory each way. For the forward of inference on a CPU see `rms_norm.py`.
"""

# ruff: noqa: ARG001  (torch calls shapes and contexts by one signature)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels.arguments import check_floats, refuse_second_derivatives, wide
from ridgeline.kernels.triton import takes

LONGEST_ROW = 8192
"""Elements of a row that registers hold in the backward: twice as many were spilled."""

_OPERATORS = torch.library.Library("ridgeline", "FRAGMENT")
_OPERATORS.define(
    "residual_norm(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, float eps,"
    " float offset, bool centred) -> (Tensor, Tensor, Tensor, Tensor)"
)
_OPERATORS.define(
    "residual_norm_backward(Tensor dy, Tensor? dh, Tensor h, Tensor? weight, Tensor mean,"
    " Tensor rstd, float offset, bool centred) -> (Tensor, Tensor, Tensor)"
)


def residual_rms_norm(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Normalise by the root mean square; returns y and h, both [..., D] in x's dtype.

    Args:
        x: [..., D], D at most `LONGEST_ROW`.
        weight: [D] of any float dtype; None: 1.
        eps: Added to the mean of squares.
        residual: Like x; None: h is x itself.
        offset: Added to the weight: 1 for models of Gemma's kind.

    Raises:
        InputError: Shapes that do not fit each other, no floats, or longer rows.
    """
    return _normalise(x, residual, weight, None, eps, offset, centred=False)


def residual_layer_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Normalise to mean 0 and variance 1; arguments, results and errors as `residual_rms_norm`."""
    return _normalise(x, residual, weight, bias, eps, offset, centred=True)


def _normalise(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    *,
    centred: bool,
) -> tuple[Tensor, Tensor]:
    check_floats("the norm", x=x, residual=residual, weight=weight, bias=bias)
    if not x.dim() or not x.shape[-1]:
        raise InputError(f"x is {tuple(x.shape)}; give [..., D] with a D of at least 1")
    size = x.shape[-1]
    if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
        raise InputError(
            f"residual is {residual.dtype} {tuple(residual.shape)} and x {x.dtype}"
            f" {tuple(x.shape)}; give both alike"
        )
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is not None and vector.shape != (size,):
            raise InputError(f"{name} is {tuple(vector.shape)} for rows of {size}; give [{size}]")
    if size > LONGEST_ROW and takes(x):
        raise InputError(f"rows of {size}: the kernel takes at most {LONGEST_ROW}")
    y, h, _, _ = torch.ops.ridgeline.residual_norm(x, residual, weight, bias, eps, offset, centred)
    return y, x if residual is None else h


def residual_norm_reference(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float = 0.0,
    *,
    centred: bool = False,
) -> tuple[Tensor, Tensor]:
    """Step by step in PyTorch, differentiable; float64 stays float64."""
    h = x if residual is None else x + residual
    y = h.to(wide(h.dtype))
    if centred:
        y = y - y.mean(-1, keepdim=True)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * (offset + weight.to(y.dtype))
    if bias is not None:
        y = y + bias.to(y.dtype)
    return y.to(x.dtype), h


Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    centred: bool,
) -> Four:
    if takes(x):
        from ridgeline.kernels.triton import residual_norm as kernel

        return kernel.forward(x, residual, weight, bias, eps, offset, centred=centred)
    y, h = residual_norm_reference(x, residual, weight, bias, eps, offset, centred=centred)
    rows = h.reshape(-1, h.shape[-1]).to(wide(h.dtype))
    mean = rows.mean(1) if centred else rows.new_empty(0)
    spread = rows - mean[:, None] if centred else rows
    rstd = torch.rsqrt(spread.square().mean(1) + eps)
    return y.contiguous(), h.contiguous() if residual is not None else h.new_empty(0), mean, rstd


def _backward(
    dy: Tensor,
    dh: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    offset: float,
    centred: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if takes(h):
        from ridgeline.kernels.triton import residual_norm as kernel

        return kernel.backward(dy, dh, h, weight, mean, rstd, offset, centred=centred)
    dtype = wide(h.dtype)
    rows = h.reshape(-1, h.shape[-1]).to(dtype)
    centre = rows - mean[:, None] if centred else rows
    normal = centre * rstd[:, None]
    upper = dy.reshape(rows.shape).to(dtype)
    weighted = upper if weight is None else upper * (offset + weight.to(dtype))
    dx = weighted - normal * (weighted * normal).mean(1, keepdim=True)
    if centred:
        dx = dx - weighted.mean(1, keepdim=True)
    dx = (dx * rstd[:, None]).view(h.shape)
    if dh is not None:
        dx = dx + dh
    like = h if weight is None else weight
    return (
        dx.to(h.dtype).contiguous(),
        (upper * normal).sum(0).to(like.dtype),
        upper.sum(0).to(like.dtype),
    )


_OPERATORS.impl("residual_norm", _forward, "CompositeExplicitAutograd")
_OPERATORS.impl("residual_norm_backward", _backward, "CompositeExplicitAutograd")


@torch.library.register_fake("ridgeline::residual_norm")
def _forward_shapes(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    centred: bool,
) -> Four:
    rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
    per_row = x.new_empty(rows, dtype=wide(x.dtype))
    return (
        x.new_empty(x.shape),
        x.new_empty(0 if residual is None else x.shape),
        torch.empty_like(per_row) if centred else x.new_empty(0, dtype=per_row.dtype),
        per_row,
    )


@torch.library.register_fake("ridgeline::residual_norm_backward")
def _backward_shapes(
    dy: Tensor, dh: Tensor | None, h: Tensor, weight: Tensor | None, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    like = h if weight is None else weight
    vector = like.new_empty(h.shape[-1])
    return h.new_empty(h.shape), vector, torch.empty_like(vector)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Four) -> None:
    x, residual, weight, bias, _, ctx.offset, ctx.centred = inputs
    _, h, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x if residual is None else h, weight, mean, rstd)
    ctx.has_residual = residual is not None
    ctx.bias_dtype = None if bias is None else bias.dtype


def _differentiate(ctx: Any, dy: Tensor | None, dh: Tensor | None, *_: object) -> Any:
    h, weight, mean, rstd = ctx.saved_tensors
    if not ctx.has_residual:
        dh = None
    if dy is None:
        dy = torch.zeros_like(h)
    dx, dweight, dbias = torch.ops.ridgeline.residual_norm_backward(
        dy, dh, h, weight, mean, rstd, ctx.offset, ctx.centred
    )
    return (
        dx,
        dx if ctx.has_residual else None,
        None if weight is None else dweight,
        None if ctx.bias_dtype is None else dbias.to(ctx.bias_dtype),
        None,
        None,
        None,
    )


torch.library.register_autograd(
    "ridgeline::residual_norm", _differentiate, setup_context=_keep, lib=_OPERATORS
)
refuse_second_derivatives("residual_norm_backward", _OPERATORS)
