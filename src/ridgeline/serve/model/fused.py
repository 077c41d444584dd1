"""Puts kernels in the place of a model's small modules: normalisations and gated MLPs.

A decode step of a small model spends a good part of its time on operators too short to matter: six
for one RMS norm. A module is replaced where a trial shows that the kernel computes the same
function with the module's own weights; the names of classes play no part, and what is like nothing
known stays as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.kernels.cpu.build import ensure_loaded, unavailable
from ridgeline.kernels.gated_activation import gelu_tanh_mul, silu_mul
from ridgeline.kernels.rms_norm import OPERATOR

_NORMS = ((0.0, True), (0.0, False), (1.0, False), (1.0, True))
"""(offset, round_first) of Llama's kind, OLMo 2's, Gemma's, and the last one for completeness."""
_ACTIVATIONS = (silu_mul, gelu_tanh_mul)


class FusedNorm(nn.Module):
    """RMS normalisation in one operator; owns the weight of the module it replaces."""

    def __init__(
        self, weight: nn.Parameter, eps: float, offset: float, *, round_first: bool
    ) -> None:
        super().__init__()
        ensure_loaded()
        self.weight = weight
        self.eps = eps
        self.offset = offset
        self.round_first = round_first

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to the same, of any type: some models keep wider sums than weights."""
        weight = self.weight.to(x.dtype)
        normed: Tensor = OPERATOR(x.contiguous(), weight, self.eps, self.offset, self.round_first)
        return normed


class FusedMlp(nn.Module):
    """down(activation(gate(x)) · up(x)) with the elementwise part in one operator.

    The three linear modules stay children under their own names, whatever their class.
    """

    def __init__(self, module: nn.Module, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.gate_proj = module.gate_proj
        self.up_proj = module.up_proj
        self.down_proj = module.down_proj
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to the same."""
        return self.down_proj(self.product(self.gate_proj(x), self.up_proj(x)))


def fuse(model: nn.Module) -> int:
    """Replace in place every norm and gated MLP that a kernel matches; returns how many.

    Only what lies on the CPU (Triton and CUDA graphs serve other devices), and where there are
    kernels for it.
    """
    count = 0
    dtype = next(one.dtype for one in model.parameters() if one.is_floating_point())
    with torch.inference_mode():
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                fused = _fused(child, dtype)
                if fused is not None:
                    setattr(parent, name, fused)
                    count += 1
    return count


def _fused(module: nn.Module, dtype: torch.dtype) -> nn.Module | None:
    """The replacement that does the same to what is of this dtype; None: there is none."""
    if isinstance(module, FusedNorm | FusedMlp):
        return None
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    candidates, size = [], 0
    if _is_norm(module):
        candidates, size, dtype = list(_norms(module)), module.weight.numel(), module.weight.dtype
    elif _is_gated_mlp(module):
        candidates = [FusedMlp(module, product) for product in _ACTIVATIONS]
        size = module.gate_proj.in_features
    if not candidates or unavailable():
        return None
    trial = _trial(size, dtype)
    expected = module(trial)
    for candidate in candidates:
        candidate.train(module.training)
        if _same(candidate(trial), expected):
            return candidate
    return None


def _is_norm(module: nn.Module) -> bool:
    """Whether a module has one vector as its only parameter, and an ε."""
    parameters = dict(module.named_parameters())
    return (
        list(parameters) == ["weight"]
        and parameters["weight"].dim() == 1
        and parameters["weight"].device.type == "cpu"
        and not list(module.children())
        and not list(module.buffers())
        and _epsilon(module) is not None
        and _takes_one(module)
    )


def _takes_one(module: nn.Module) -> bool:
    """Whether a module computes from one tensor alone; a gated norm may take its gate besides."""
    parameters = inspect.signature(module.forward).parameters.values()
    return sum(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters) == 1


def _epsilon(module: nn.Module) -> float | None:
    found = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return found if isinstance(found, float) else None


def _norms(module: nn.Module) -> Iterator[FusedNorm]:
    epsilon = _epsilon(module)
    assert epsilon is not None
    for offset, round_first in _NORMS:
        yield FusedNorm(module.weight, epsilon, offset, round_first=round_first)


def _is_gated_mlp(module: nn.Module) -> bool:
    """Three linear children of the usual names and an activation, on the CPU."""
    linears: list[Any] = [getattr(module, f"{name}_proj", None) for name in ("gate", "up", "down")]
    others = [
        name for name, child in module.named_children()
        if child not in linears and list(child.parameters())
    ]  # fmt: skip
    return (
        all(isinstance(one, nn.Module) for one in linears)
        and not others
        and isinstance(getattr(linears[0], "in_features", None), int)
        and all(one.device.type == "cpu" for one in (*module.parameters(), *module.buffers()))
    )


def _trial(size: int, dtype: torch.dtype) -> Tensor:
    """Trial activations [2, 4, size]: rows so small that ε counts, and large ones."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 4, size, generator=generator)
    return (rows * torch.tensor([1e-3, 0.1, 1.0, 10.0])[:, None]).to(dtype)


def _same(found: Tensor, expected: Tensor) -> bool:
    """Equal but for the order of float32 sums, and where those tip a rounding."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if found.dtype == torch.float32:
        return torch.allclose(found, expected, rtol=2e-6, atol=2e-6 * float(expected.abs().max()))
    step = torch.finfo(found.dtype).eps
    close = torch.allclose(found, expected, rtol=2 * step, atol=step * float(expected.abs().max()))
    return close and float((found == expected).float().mean()) > 0.95
