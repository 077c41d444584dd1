"""Norms among a model's modules, by what they compute: layer norm or root mean square, over rows.

A module without parts whose class has "norm" in its name is tried; so torch's own are taken, those
of transformers, and those that a script writes itself, with or without weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ridgeline.kernels.agreement import Call, agreeing_dims, drawn_like, other_weights
from ridgeline.kernels.residual_norm import (
    LONGEST_ROW,
    residual_layer_norm,
    residual_rms_norm,
)

_BIASES = ("bias", "beta", "b", "shift")
"""What the second vector of a norm is called, where it comes alone."""
_USUAL_EPS = (1e-5, 1e-6, 1e-8, 1e-12, float(torch.finfo(torch.float32).eps))
_LARGEST_EPS = 0.1
_ANY_SIZE = 96
"""Elements of a row for a norm that has none of its own."""


def named_as_a_norm(module: nn.Module) -> bool:
    """Whether the name says norm, and nothing that it keeps says something else."""
    own = type(module).__name__.lower()
    return "norm" in own and not any(module.children()) and not any(True for _ in module.buffers())


def norm_of(module: nn.Module) -> tuple[Call, frozenset[int]] | None:
    """A fused call that computes what a norm does, and in how many dimensions; None: no such."""
    vectors = dict(module.named_parameters())
    if len(vectors) > 2 or any(type(one.data) is not Tensor for one in vectors.values()):
        return None
    sizes = {tuple(one.shape) for one in vectors.values()}
    if len(sizes) > 1 or any(len(one) != 1 for one in sizes):
        return None
    like = next(iter(vectors.values()), torch.empty(0))
    size = next((one[0] for one in sizes), _size_by_name(module))
    if not 2 <= size <= LONGEST_ROW or like.device.type == "meta" or not like.is_floating_point():
        return None
    weight, bias = _roles(vectors)
    values = {one: drawn_like(one, at) for at, one in enumerate(vectors.values())}
    for centred, offset, eps in itertools.product(_orders(module), (0.0, 1.0), _eps_of(module)):
        if weight is None and offset:
            continue
        fused = _call(module, weight, bias, eps, offset, centred=centred)
        with other_weights(values):
            dims = agreeing_dims(module, fused, size, like, scales=True)
        if dims:
            return fused, dims
    return None


def _size_by_name(module: nn.Module) -> int:
    shape = getattr(module, "normalized_shape", None)
    return shape[0] if isinstance(shape, tuple) and len(shape) == 1 else _ANY_SIZE


def _roles(vectors: dict[str, nn.Parameter]) -> tuple[str | None, str | None]:
    """Which vector multiplies, and which is added."""
    names = list(vectors)
    bias = next((one for one in names if one in _BIASES), None)
    if bias is None and len(names) == 2:
        bias = names[1]
    return next((one for one in names if one != bias), None), bias


def _orders(module: nn.Module) -> tuple[bool, bool]:
    return (False, True) if "rms" in type(module).__name__.lower() else (True, False)


def _eps_of(module: nn.Module) -> Iterator[float]:
    """What may stand under the root: a small number that the module has, or a usual one."""
    seen = [one for one in vars(module).values() if isinstance(one, float)]
    yield from dict.fromkeys([*(one for one in seen if 0 < one < _LARGEST_EPS), *_USUAL_EPS])


def _call(
    module: nn.Module,
    weight: str | None,
    bias: str | None,
    eps: float,
    offset: float,
    *,
    centred: bool,
) -> Call:
    def parameter(name: str | None) -> Tensor | None:
        return None if name is None else module.get_parameter(name)

    def layer(x: Tensor) -> Tensor:
        return residual_layer_norm(x, parameter(weight), parameter(bias), eps, offset=offset)[0]

    def rms(x: Tensor) -> Tensor:
        return residual_rms_norm(x, parameter(weight), eps, offset=offset)[0]

    return layer if centred else rms
