"""The elementwise part of gated MLPs (Shazeer, 2002.05202): one half activated, times the other.

    silu(g) · u = g / (1 + e^−g) · u                              SwiGLU: Llama, Qwen, Mistral
    gelu(g) · u ≈ g / 2 · (1 + tanh(√(2/π) (g + 0.044715 g³))) · u    GeGLU: Gemma

In bf16 and fp16 the activation is rounded before the product, as a model of two steps does.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.kernels.cpu.build import ensure_loaded

_OPERATORS = torch.library.Library("ridgeline", "FRAGMENT")
_OPERATORS.define("silu_mul(Tensor gate, Tensor up) -> Tensor")
_OPERATORS.define("gelu_tanh_mul(Tensor gate, Tensor up) -> Tensor")


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up of two [..., I] in their dtype."""
    if gate.device.type != "cpu":
        return silu_mul_reference(gate, up)
    ensure_loaded()
    return torch.ops.ridgeline.silu_mul(_rows(gate), _rows(up)).view(gate.shape)


def gelu_tanh_mul(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) · up with gelu's tanh formula, of two [..., I] in their dtype."""
    if gate.device.type != "cpu":
        return gelu_tanh_mul_reference(gate, up)
    ensure_loaded()
    return torch.ops.ridgeline.gelu_tanh_mul(_rows(gate), _rows(up)).view(gate.shape)


def silu_mul_reference(gate: Tensor, up: Tensor) -> Tensor:
    """What `silu_mul` computes, in two steps of PyTorch."""
    return functional.silu(gate) * up


def gelu_tanh_mul_reference(gate: Tensor, up: Tensor) -> Tensor:
    """What `gelu_tanh_mul` computes, in two steps of PyTorch."""
    return functional.gelu(gate, approximate="tanh") * up


def _rows(x: Tensor) -> Tensor:
    """[rows, I]; a view wherever one exists, for halves of one tensor as well."""
    return x.reshape(-1, x.shape[-1])


# Where the CPU kernels are loaded, theirs come before these.
_OPERATORS.impl("silu_mul", silu_mul_reference, "CompositeExplicitAutograd")
_OPERATORS.impl("gelu_tanh_mul", gelu_tanh_mul_reference, "CompositeExplicitAutograd")


@torch.library.register_fake("ridgeline::silu_mul")
@torch.library.register_fake("ridgeline::gelu_tanh_mul")
def _product_shape(gate: Tensor, _up: Tensor) -> Tensor:
    return gate.new_empty(gate.shape)
