"""Root mean square normalisation (Zhang and Sennrich, 1910.07467, eq. 4), in one pass over memory.

    y = x / sqrt(mean(x²) + ε) · (offset + w)        over the last dimension

Sums are float32. Models differ in where bf16 and fp16 round: Llama's kind rounds x / sqrt(…) before
the weight (`round_first`), Gemma's multiplies by 1 + w in float32 and rounds once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.cpu.build import ensure_loaded

_OPERATORS = torch.library.Library("ridgeline", "FRAGMENT")
_OPERATORS.define(
    "rms_norm(Tensor x, Tensor weight, float eps, float offset, bool round_first) -> Tensor"
)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0, round_first: bool = True
) -> Tensor:
    """[..., D] normalised, in x's dtype, which is the weight's too; [D] weight."""
    if x.device.type != "cpu":
        return rms_norm_reference(x, weight, eps, offset=offset, round_first=round_first)
    ensure_loaded()
    return torch.ops.ridgeline.rms_norm(x.contiguous(), weight, eps, offset, round_first)


def rms_norm_reference(
    x: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0, round_first: bool = True
) -> Tensor:
    """Step by step in PyTorch, as the models of transformers do it."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if round_first:
        wide = wide.to(x.dtype).float()
    return (wide * (offset + weight.float())).to(x.dtype)


def _in_torch(x: Tensor, weight: Tensor, eps: float, offset: float, round_first: bool) -> Tensor:
    return rms_norm_reference(x, weight, eps, offset=offset, round_first=round_first)


# Where the CPU kernels are loaded, theirs comes before this.
_OPERATORS.impl("rms_norm", _in_torch, "CompositeExplicitAutograd")
OPERATOR = torch.ops.ridgeline.rms_norm.default
"""For callers that have loaded the kernels themselves; activations are contiguous."""


@torch.library.register_fake("ridgeline::rms_norm")
def _rms_norm_shape(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)
