"""The elementwise part of gated MLPs for training: activation times gate, with both gradients.

    y = a(g) · u          dg = dy · u · a'(g)          du = dy · a(g)

    silu(g) = g σ(g)                                   silu' = σ (1 + g (1 - σ))
    gelu_tanh(g) = g σ(2k),  k = √(2/π)(g + 0.044715 g³)
    gelu(g) = g Φ(g)                                   gelu' = Φ + g φ

(Shazeer, "GLU Variants Improve Transformer", 2002.05202.) Nothing but g and u is kept for the
backward, and what is computed from them is float32 and rounded once. For inference on a CPU see
`gated_activation.py`.
"""

# ruff: noqa: ARG001  (torch calls shapes and contexts by one signature)

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.errors import InputError
from ridgeline.kernels.arguments import check_floats, refuse_second_derivatives, wide
from ridgeline.kernels.triton import takes

Activation = Literal["silu", "gelu_tanh", "gelu"]
ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu_tanh", "gelu")
_OPERATORS = torch.library.Library("ridgeline", "FRAGMENT")
_OPERATORS.define("gated_product(Tensor gate, Tensor up, str activation) -> Tensor")
_OPERATORS.define(
    "gated_product_backward(Tensor dy, Tensor gate, Tensor up, str activation) -> (Tensor, Tensor)"
)


def gated_product(gate: Tensor, up: Tensor, activation: Activation = "silu") -> Tensor:
    """Activation of the gate, times the other half.

    Args:
        gate: [..., I]; halves of one tensor are read where they lie.
        up: The same shape and dtype.
        activation: SwiGLU's "silu", or GeGLU's "gelu_tanh" (by its tanh formula) or "gelu".

    Raises:
        InputError: Two shapes or dtypes, no floats, or an activation that is not known.
    """
    check_floats("gated_product", gate=gate, up=up)
    if gate.shape != up.shape or gate.dtype != up.dtype:
        raise InputError(
            f"gate is {gate.dtype} {tuple(gate.shape)} and up {up.dtype} {tuple(up.shape)};"
            " give both alike"
        )
    if activation not in ACTIVATIONS:
        raise InputError(f"no activation {activation!r}; known: {', '.join(ACTIVATIONS)}")
    return torch.ops.ridgeline.gated_product(gate, up, activation)


def gated_product_reference(gate: Tensor, up: Tensor, activation: Activation = "silu") -> Tensor:
    """Step by step in PyTorch, differentiable; float64 stays float64."""
    g = gate.to(wide(gate.dtype))
    if activation == "silu":
        active = functional.silu(g)
    else:
        formula = "tanh" if activation == "gelu_tanh" else "none"
        active = functional.gelu(g, approximate=formula)
    return (active * up.to(g.dtype)).to(gate.dtype)


def _forward(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    if takes(gate):
        from ridgeline.kernels.triton import gated_product as kernel

        return kernel.forward(gate, up, activation)
    return gated_product_reference(gate, up, activation).contiguous()


def _backward(
    dy: Tensor, gate: Tensor, up: Tensor, activation: Activation
) -> tuple[Tensor, Tensor]:
    if takes(gate):
        from ridgeline.kernels.triton import gated_product as kernel

        return kernel.backward(dy, gate, up, activation)
    dtype = wide(gate.dtype)
    g, upper = gate.to(dtype), dy.to(dtype)
    if activation == "silu":
        share = torch.sigmoid(g)
        active, slope = g * share, share * (1 + g * (1 - share))
    elif activation == "gelu_tanh":
        share = torch.sigmoid(2 * 0.7978845608028654 * (g + 0.044715 * g**3))
        rate = 2 * 0.7978845608028654 * (1 + 3 * 0.044715 * g**2)
        active, slope = g * share, share + share * g * (1 - share) * rate
    else:
        share = 0.5 * (1 + torch.erf(g * 0.7071067811865476))
        active, slope = g * share, share + g * 0.3989422804014327 * torch.exp(-0.5 * g * g)
    dgate, dup = upper * up.to(dtype) * slope, upper * active
    return dgate.to(gate.dtype).contiguous(), dup.to(up.dtype).contiguous()


_OPERATORS.impl("gated_product", _forward, "CompositeExplicitAutograd")
_OPERATORS.impl("gated_product_backward", _backward, "CompositeExplicitAutograd")


@torch.library.register_fake("ridgeline::gated_product")
def _product_shape(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    return gate.new_empty(gate.shape)


@torch.library.register_fake("ridgeline::gated_product_backward")
def _gradient_shapes(
    dy: Tensor, gate: Tensor, up: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    gate, up, ctx.activation = inputs
    ctx.save_for_backward(gate, up)


def _differentiate(ctx: Any, dy: Tensor) -> Any:
    gate, up = ctx.saved_tensors
    return *torch.ops.ridgeline.gated_product_backward(dy, gate, up, ctx.activation), None


torch.library.register_autograd(
    "ridgeline::gated_product", _differentiate, setup_context=_keep, lib=_OPERATORS
)
refuse_second_derivatives("gated_product_backward", _OPERATORS)
