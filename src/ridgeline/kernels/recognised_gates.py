"""Gated MLPs among a model's modules: down(activation(gate(x)) · up(x)), whatever they are called.

The three matrices are told apart by their shapes, or are two where gate and up are one; which half
is the gate, and which activation it has, is what agrees. Matrices other than `nn.Linear` (adapters,
quantised ones) are taken by the names that models of transformers give them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.kernels.agreement import Call, agreeing_dims, is_close, other_weights
from ridgeline.kernels.gated_product import ACTIVATIONS, Activation, gated_product

_NAMES = ("gate_proj", "up_proj", "down_proj")
_ACTIVATION_NAMES = ("act_fn", "activation_fn", "act", "activation", "activation_func")
_SMALL, _SMALL_INSIDE = 24, 40
"""Sizes of the matrices by which formulas are told apart."""
_LONGEST_TRIED = 65536
"""Inputs of a matrix that is tried as it is."""


@dataclass(frozen=True)
class _Way:
    """One way to take the parts of a module, by their names, for a gated MLP."""

    down: str
    into: tuple[str, ...]
    """Gate and up, or the one matrix that is both."""
    gate_first: bool = True

    def call(self, module: nn.Module, activation: Activation) -> Call:
        """The MLP with the product in one kernel; parts are looked up when it is called."""

        def fused(x: Tensor) -> Tensor:
            parts = [getattr(module, name)(x) for name in self.into]
            gate, up = parts if len(parts) == 2 else parts[0].chunk(2, -1)
            if not self.gate_first:
                gate, up = up, gate
            return getattr(module, self.down)(  # type: ignore[no-any-return]
                gated_product(gate, up, activation)
            )

        return fused


def has_a_gate(module: nn.Module) -> bool:
    """Whether the parts of a module are those of a gated MLP, by name or by shape."""
    return _has_names(module) or next(_ways(module), None) is not None


def gate_of(module: nn.Module) -> tuple[Call, frozenset[int]] | None:
    """A call with the product in one kernel, and in how many dimensions; None: no such."""
    for way in _ways(module):
        for activation in _activations(module):
            fused = way.call(module, activation)
            dims = _dims_of_small(module, way, fused)
            if dims:
                return fused, dims
    return _by_name(module) if _has_names(module) and not _is_plain(module) else None


def _by_name(module: nn.Module) -> tuple[Call, frozenset[int]] | None:
    """The same for matrices of any kind, which are tried as they are."""
    values = [one for one in module.parameters() if type(one.data) is Tensor]
    like = next((one for one in values if one.is_floating_point()), None)
    if like is None or like.device.type == "meta" or like.shape[-1] > _LONGEST_TRIED:
        return None
    for activation in _activations(module):
        fused = _Way(_NAMES[2], _NAMES[:2]).call(module, activation)
        dims = agreeing_dims(module, fused, like.shape[-1], like, scales=False)
        if dims:
            return fused, dims
    return None


def _has_names(module: nn.Module) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Module) for name in _NAMES)


def _is_plain(module: nn.Module) -> bool:
    """Whether all that a module keeps are matrices of `nn.Linear` itself."""
    parts = [one for one in module.modules() if type(one) is not nn.Linear]
    kept = [value for one in parts for value in (*one._parameters.values(), *one._buffers.values())]
    matrices = (one for one in module.children() if type(one) is nn.Linear)
    return all(value is None for value in kept) and all(
        type(one.weight.data) is Tensor for one in matrices
    )


def _ways(module: nn.Module) -> Iterator[_Way]:
    """Each way to take the matrices of a module for a gated MLP."""
    found = {name: one for name, one in module.named_children() if type(one) is nn.Linear}
    if len(found) not in (2, 3) or not _is_plain(module):
        return
    for name, down in found.items():
        into = tuple(other for other in found if other != name)
        width = down.in_features * (2 if len(into) == 1 else 1)
        shapes = {(found[one].in_features, found[one].out_features) for one in into}
        if shapes != {(down.out_features, width)}:
            continue
        yield _Way(name, into)
        yield _Way(name, into[::-1]) if len(into) == 2 else _Way(name, into, gate_first=False)


def _activations(module: nn.Module) -> Iterator[Activation]:
    """The activation that a module has as a part; every one where it has none by name."""
    given = [getattr(module, name, None) for name in _ACTIVATION_NAMES]
    functions = [one for one in given if callable(one)]
    if not functions:
        yield from ACTIVATIONS
    for function in functions:
        known = _activation_of(function)
        if known is not None:
            yield known


def _activation_of(function: Any) -> Activation | None:
    """Which activation a function is, told apart in float32."""
    x = torch.linspace(-6, 6, 97)
    for activation in ACTIVATIONS:
        try:
            if is_close(gated_product(x, torch.ones_like(x), activation), function(x)):
                return activation
        except Exception:  # no function of one tensor
            return None
    return None


def _dims_of_small(module: nn.Module, way: _Way, fused: Call) -> frozenset[int]:
    """Where both agree with small matrices of random numbers, in float32 and in the own dtype."""
    own = next(module.parameters())
    if own.device.type == "meta" or not own.is_floating_point():
        return frozenset()
    dims = frozenset({2, 3, 4})
    for like in (torch.empty(0), torch.empty(0, device=own.device, dtype=own.dtype)):
        with other_weights(_small(module, way, like)):
            dims &= agreeing_dims(module, fused, _SMALL, like, scales=False)
    return dims


def _small(module: nn.Module, way: _Way, like: Tensor) -> dict[nn.Parameter, Tensor]:
    """Small matrices of random numbers for those of a module."""
    generator = torch.Generator().manual_seed(0)
    inside = _SMALL_INSIDE * (2 if len(way.into) == 1 else 1)
    shapes = dict.fromkeys(way.into, (inside, _SMALL)) | {way.down: (_SMALL, _SMALL_INSIDE)}
    values: dict[nn.Parameter, Tensor] = {}
    for name, shape in shapes.items():
        weight = torch.randn(shape, generator=generator) / shape[1] ** 0.5
        bias = torch.randn(shape[0], generator=generator)
        part = module.get_submodule(name)
        for parameter, value in ((part.weight, weight), (part.bias, bias)):
            if isinstance(parameter, nn.Parameter):
                values[parameter] = value.to(like.device, like.dtype)
    return values
