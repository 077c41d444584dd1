"""Matmuls of experts in one launch: rows of each group times the group's own matrix.

    y[rows of e] = x[rows of e] · W[e]          rows of e: from ends[e-1] to ends[e]
    dx[rows of e] = dy[rows of e] · W[e]ᵀ          dW[e] = x[rows of e]ᵀ · dy[rows of e]

As mixtures of experts need it (Gale et al., MegaBlocks, 2211.15841, section 5): how many rows an
expert has is known on the device alone, and nothing waits for it. Products are summed in float32.
An expert without rows has a gradient of zero.
"""

# ruff: noqa: ARG001  (torch calls shapes and contexts by one signature)

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels.arguments import (
    check_floats,
    in_dtype_of_autocast,
    refuse_second_derivatives,
)
from ridgeline.kernels.triton import takes

_OPERATORS = torch.library.Library("ridgeline", "FRAGMENT")
_OPERATORS.define("grouped_matmul(Tensor x, Tensor weight, Tensor ends) -> Tensor")
_OPERATORS.define("grouped_matmul_dweight(Tensor x, Tensor dy, Tensor ends) -> Tensor")


def grouped_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """[T, N] of [T, K] rows that lie together by group, and [E, K, N] matrices.

    Args:
        x: [T, K].
        weight: [E, K, N] in x's dtype (under autocast both take its); any strides, so that
            [E, N, K] is given transposed.
        ends: [E] int32, not falling: where each group's rows end; the last is T. Rows beyond the
            last end are zeros.

    Raises:
        InputError: Shapes or dtypes that do not fit each other; ends that fall or lie beyond T on a
            CPU (on a GPU what lies beyond is left out).
    """
    check_floats("grouped_matmul", x=x, weight=weight)
    x, weight = in_dtype_of_autocast(x, weight)
    if x.dim() != 2 or weight.dim() != 3 or x.shape[1] != weight.shape[1]:
        raise InputError(
            f"x {tuple(x.shape)} and weight {tuple(weight.shape)} do not fit; give [T, K] and"
            " [E, K, N]"
        )
    if x.dtype != weight.dtype or ends.dtype != torch.int32 or ends.shape != weight.shape[:1]:
        raise InputError(
            f"x is {x.dtype}, weight {weight.dtype}, ends {ends.dtype} {tuple(ends.shape)}; give"
            f" x and weight alike and [{len(weight)}] ends in int32"
        )
    return torch.ops.ridgeline.grouped_matmul(x, weight, ends)


def grouped_matmul_reference(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """One matmul after the other in PyTorch, differentiable; waits for the device."""
    places = _places(ends, len(x))
    parts = [x[a:b] @ matrix for (a, b), matrix in zip(pairwise(places), weight, strict=True)]
    parts.append(x.new_zeros(len(x) - places[-1], weight.shape[2]))
    return torch.cat(parts)


def _places(ends: Tensor, num_rows: int) -> list[int]:
    """Where groups begin, and where the last one ends."""
    places = [0, *ends.tolist()]
    if places != sorted(places) or places[-1] > num_rows:
        raise InputError(f"ends {places[1:]} of {num_rows} rows; give ends that do not fall")
    return places


def _multiply(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    if takes(x):
        from ridgeline.kernels.triton import grouped_matmul as kernel

        return kernel.multiply(x, weight, ends)
    return grouped_matmul_reference(x, weight, ends)


def _gradient_of_weight(x: Tensor, dy: Tensor, ends: Tensor) -> Tensor:
    if takes(x):
        from ridgeline.kernels.triton import grouped_matmul as kernel

        return kernel.gradient_of_weight(x, dy, ends)
    places = _places(ends, len(x))
    parts = [x[a:b].T @ dy[a:b] for a, b in pairwise(places)]
    return torch.stack(parts) if parts else x.new_empty(0, x.shape[1], dy.shape[1])


_OPERATORS.impl("grouped_matmul", _multiply, "CompositeExplicitAutograd")
_OPERATORS.impl("grouped_matmul_dweight", _gradient_of_weight, "CompositeExplicitAutograd")


@torch.library.register_fake("ridgeline::grouped_matmul")
def _product_shape(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


@torch.library.register_fake("ridgeline::grouped_matmul_dweight")
def _weight_shape(x: Tensor, dy: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], x.shape[1], dy.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, dy: Tensor) -> Any:
    x, weight, ends = ctx.saved_tensors
    for_x, for_weight, _ = ctx.needs_input_grad
    operators = torch.ops.ridgeline
    return (
        operators.grouped_matmul(dy, weight.transpose(1, 2), ends) if for_x else None,
        operators.grouped_matmul_dweight(x, dy, ends) if for_weight else None,
        None,
    )


torch.library.register_autograd(
    "ridgeline::grouped_matmul", _differentiate, setup_context=_keep, lib=_OPERATORS
)
refuse_second_derivatives("grouped_matmul_dweight", _OPERATORS)
