"""Rotary position embedding of queries and keys in one launch, with its gradient.

Pairs (a, b) of a head's numbers are turned by an angle that grows with the position
(Su et al., RoFormer, 2104.09864, eq. 34):

    a' = a cos₁ - b sin₁          da = da' cos₁ + db' sin₂
    b' = b cos₂ + a sin₂          db = db' cos₂ - da' sin₁

cos and sin have an entry for each number of a head, as models of transformers make them; 1 and 2
stand for the two of a pair. Pairs are the two halves of a head (Llama's kind), or neighbours
(`interleaved`, GPT-J's kind). The gradient is the turn backwards; cos and sin get none. All is
float32 and rounded once.
"""

# ruff: noqa: ARG001  (torch calls shapes and contexts by one signature)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels.arguments import check_floats, wide
from ridgeline.kernels.triton import takes

_OPERATORS = torch.library.Library("ridgeline", "FRAGMENT")
_OPERATORS.define(
    "rotary(Tensor queries, Tensor keys, Tensor cos, Tensor sin, bool interleaved, bool backwards)"
    " -> (Tensor, Tensor)"
)


def rotary(
    queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Turn queries and keys; results lie in memory as the inputs do.

    Args:
        queries: [B, H, T, D], D even; views of [B, T, H, D] are read where they lie.
        keys: [B, KV, T, D] in the same dtype.
        cos: [B, T, D] or [1, T, D], any float dtype.
        sin: The same.
        interleaved: Whether neighbours form a pair.

    Raises:
        InputError: Shapes that do not fit each other; no floats; cos or sin that want a gradient.
    """
    check_floats("rotary", queries=queries, keys=keys, cos=cos, sin=sin)
    if queries.dim() != 4 or keys.dim() != 4:
        raise InputError(
            f"queries are {tuple(queries.shape)} and keys {tuple(keys.shape)}; give [B, H, T, D]"
        )
    batch, _, length, dim = queries.shape
    if keys.shape[:1] + keys.shape[2:] != (batch, length, dim) or keys.dtype != queries.dtype:
        raise InputError(
            f"keys are {keys.dtype} {tuple(keys.shape)} and queries {queries.dtype}"
            f" {tuple(queries.shape)}; only the heads may differ"
        )
    shapes = {tuple(cos.shape), tuple(sin.shape)}
    if dim % 2 or not shapes <= {(batch, length, dim), (1, length, dim)} or len(shapes) != 1:
        raise InputError(
            f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} do not fit heads of {dim} at"
            f" {length} places; give [1 or {batch}, {length}, {dim}], {dim} even"
        )
    if cos.requires_grad or sin.requires_grad:
        raise InputError("cos and sin get no gradient from the rotary kernel; detach them")
    return torch.ops.ridgeline.rotary(queries, keys, cos, sin, interleaved, False)


def rotary_reference(
    queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Step by step in PyTorch, differentiable; float64 stays float64."""
    return _turned(queries, cos, sin, interleaved), _turned(keys, cos, sin, interleaved)


def _turned(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, backwards: bool = False
) -> Tensor:
    dtype = wide(x.dtype)
    (a, b), (cos_1, cos_2), (sin_1, sin_2) = (
        _pairs(one.to(dtype), interleaved) for one in (x, cos.unsqueeze(1), sin.unsqueeze(1))
    )
    if backwards:
        first, second = a * cos_1 + b * sin_2, b * cos_2 - a * sin_1
    else:
        first, second = a * cos_1 - b * sin_1, b * cos_2 + a * sin_2
    both = torch.stack((first, second), -1 if interleaved else -2)
    return both.flatten(-2).to(x.dtype)


def _pairs(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    if interleaved:
        return x[..., ::2], x[..., 1::2]
    first, second = x.chunk(2, -1)
    return first, second


def _laid_out_like(x: Tensor) -> Tensor:
    """Memory for a result: a view of [B, T, H, D] where x is one."""
    if x.transpose(1, 2).is_contiguous():
        return x.transpose(1, 2).new_empty(x.transpose(1, 2).shape).transpose(1, 2)
    return x.new_empty(x.shape)


def _run(
    queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, backwards: bool
) -> tuple[Tensor, Tensor]:
    turned = (_laid_out_like(queries), _laid_out_like(keys))
    if takes(queries):
        from ridgeline.kernels.triton import rotary as kernel

        kernel.turn(
            turned, (queries, keys), (cos, sin), interleaved=interleaved, backwards=backwards
        )
        return turned
    for result, x in zip(turned, (queries, keys), strict=True):
        result.copy_(_turned(x, cos, sin, interleaved, backwards))
    return turned


_OPERATORS.impl("rotary", _run, "CompositeExplicitAutograd")


@torch.library.register_fake("ridgeline::rotary")
def _turned_shapes(queries: Tensor, keys: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return _laid_out_like(queries), _laid_out_like(keys)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, _, cos, sin, ctx.interleaved, ctx.backwards = inputs
    ctx.save_for_backward(cos, sin)


def _differentiate(ctx: Any, dqueries: Tensor, dkeys: Tensor) -> Any:
    cos, sin = ctx.saved_tensors
    found = torch.ops.ridgeline.rotary(
        dqueries, dkeys, cos, sin, ctx.interleaved, not ctx.backwards
    )
    return *found, None, None, None, None


torch.library.register_autograd(
    "ridgeline::rotary", _differentiate, setup_context=_keep, lib=_OPERATORS
)
