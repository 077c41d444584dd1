"""A module without some of its channels: smaller, dense, and proven to be the same without them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ridgeline.compress.pruning import weights
from ridgeline.compress.pruning.channels.choose import going, magnitudes, weights_of, worth
from ridgeline.compress.pruning.channels.coupling import Coupling, coupling
from ridgeline.compress.pruning.channels.reading import Array
from ridgeline.compress.pruning.channels.resized import replace
from ridgeline.compress.pruning.structured.units import MULTIPLE
from ridgeline.errors import InputError, RidgelineError, in_words
from ridgeline.records.scheme import Pruning

TOLERANCE = 1e-6
"""The share of the largest output by which float64 sums in another order may differ."""

LossOf = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """What is left of a module."""

    model: nn.Module
    """A copy; the module that was given is as it was."""
    shapes: Mapping[str, list[int]]
    """The shapes of the parameters and buffers that changed (`resized.resize`)."""
    counts: Mapping[str, Mapping[str, int]]
    """The counts of the modules that changed."""
    left_whole: tuple[str, ...]
    """Operations whose channels all stayed, and why."""


def prune_channels(
    model: nn.Module,
    example: tuple[Tensor, ...],
    pruning: Pruning,
    *,
    batches: Iterable[Any] = (),
    loss_of: LossOf | None = None,
    multiple: int = MULTIPLE,
) -> Smaller:
    """A copy of a module without the channels that are worth least.

    Before it is returned it has computed, in float64, what the original computes where the weights
    that read those channels are zero.

    Args:
        model: Any module that torch.export can follow; its inputs and outputs keep their channels.
        example: Positional inputs, with a batch dimension; two samples are enough.
        pruning: Of channels, by "magnitude" or "taylor".
        batches: Of calibration, with "taylor".
        loss_of: Loss of the module on a batch, with "taylor".
        multiple: That widths are rounded to, where they were multiples of it.

    Raises:
        InputError: The module cannot be followed, nothing of it can go, the criterion is one for
            single weights, or its code fixes sizes.
        RidgelineError: What is left computes something else; nothing is returned then.
    """
    found = coupling(model, example)
    names = weights_of(model, found)
    match pruning.criterion:
        case "magnitude":
            squares = magnitudes(model, names)
        case "taylor":
            if loss_of is None:
                raise InputError("taylor needs calibration images with labels; give --calibration")
            asleep = copy.deepcopy(model).eval().requires_grad_()
            squares = weights.importance_of(asleep, batches, loss_of, names)
        case other:
            raise InputError(
                f"{other} ranks single weights, not channels; choose magnitude or taylor"
            )
    gone = going(found.families, worth(found, squares), pruning, multiple)
    smaller = cut(model, found, gone)
    _prove(masked(model, found, gone), smaller.model, example)
    return smaller


@torch.no_grad()
def cut(model: nn.Module, found: Coupling, gone: Array) -> Smaller:
    """A copy of a module without some units."""
    smaller = copy.deepcopy(model)
    tensors = dict(smaller.state_dict(keep_vars=True))
    tensors |= dict(smaller.named_buffers())
    shapes: dict[str, list[int]] = {}
    for name, slots in found.slots.items():
        tensor = new = tensors[name]
        for dim, units in slots.items():
            kept = torch.from_numpy(np.flatnonzero(~np.isin(units, gone)))
            new = new.index_select(dim, kept.to(new.device))
        if new.shape != tensor.shape:
            layout = torch.channels_last if _channels_last(tensor) else torch.contiguous_format
            replace(smaller, name, new.detach().contiguous(memory_format=layout))
            shapes[name] = list(new.shape)
    counts: dict[str, dict[str, int]] = {}
    for one in found.counts:
        kept_count = int((~np.isin(one.labels, gone)).sum())
        if kept_count != len(one.labels):
            value = kept_count // one.per
            setattr(smaller.get_submodule(one.module), one.attribute, value)
            counts.setdefault(one.module, {})[one.attribute] = value
    return Smaller(model=smaller, shapes=shapes, counts=counts, left_whole=found.left_whole)


@torch.no_grad()
def masked(model: nn.Module, found: Coupling, gone: Array) -> nn.Module:
    """A copy of a module of its own size, where nothing reads some units."""
    silent = copy.deepcopy(model)
    for name, dim in found.reads:
        places = torch.from_numpy(np.flatnonzero(np.isin(found.slots[name][dim], gone)))
        weight = silent.get_parameter(name)
        weight.index_fill_(dim, places.to(weight.device), 0.0)
    return silent


def _channels_last(tensor: Tensor) -> bool:
    return (
        tensor.ndim == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )


@torch.no_grad()
def _prove(whole: nn.Module, smaller: nn.Module, example: tuple[Tensor, ...]) -> None:
    """Raise unless both compute the same."""
    exact = tuple(one.double() if one.is_floating_point() else one for one in example)
    wanted = _tensors(whole.double().eval()(*exact))
    try:
        made = _tensors(copy.deepcopy(smaller).double().eval()(*exact))
    except (RuntimeError, ValueError, TypeError) as error:
        raise InputError(
            "this model's code fixes sizes, so that it fails with fewer channels:"
            f" {in_words(error)}"
        ) from error
    for one, other in zip(wanted, made, strict=True):
        largest = float(one.abs().max())
        off = float((one - other).abs().max()) if one.shape == other.shape else float("inf")
        if not off <= TOLERANCE * max(largest, TOLERANCE):
            raise RidgelineError(
                f"without the channels the model computes something else (off by {off:.3g} of"
                f" {largest:.3g}); nothing was changed: please report its architecture"
            )


def _tensors(output: Any) -> list[Tensor]:
    return [one for one in tree_leaves(output) if isinstance(one, Tensor)]
