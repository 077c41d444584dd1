"""The grid of a weight matrix, and the nearest points on it.

Every method that rounds shares this: `grid` finds scales and zero points with the format's
observer, `levels` rounds to them, `value` reads them back (`kernels/number_formats/grid.py`, which
training shares).
"""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor

from ridgeline.checkpoints.quantised import Quantised
from ridgeline.compress.observers import mse
from ridgeline.errors import InputError
from ridgeline.kernels.number_formats.grid import (
    Grid,
    grid_between,
    in_groups,
    levels,
    rounded,
    value,
    whole_scale,
)
from ridgeline.records.scheme import NumberFormat

__all__ = [
    "Grid",
    "check",
    "check_depth",
    "grid",
    "grid_between",
    "in_groups",
    "levels",
    "on_grid",
    "rounded",
    "to_nearest",
    "value",
]


def check_depth(depth: int, form: NumberFormat, name: str) -> None:
    """Refuse groups that do not divide the inputs of a layer.

    Raises:
        InputError: The layer and both numbers.
    """
    if form.group and depth % form.group:
        raise InputError(
            f"{name}: {depth} input features are no multiple of a group of {form.group}; "
            "choose a group that divides them, or leave the layer out"
        )


def check(weight: Tensor, form: NumberFormat, name: str) -> None:
    """Refuse what cannot be rounded.

    Raises:
        InputError: A weight that is not finite, or a depth that its groups do not divide.
    """
    check_depth(weight.shape[1], form, name)
    if not bool(torch.isfinite(weight).all()):
        bad = int((~torch.isfinite(weight)).sum())
        raise InputError(
            f"{name}: {bad} of {weight.numel()} weights are infinite or NaN; the checkpoint is "
            "broken, or was saved in a dtype that overflowed"
        )


def grid(
    weight: Tensor,
    form: NumberFormat,
    name: str = "a weight",
    *,
    dtype: torch.dtype | None = None,
    costs: Tensor | None = None,
) -> Grid:
    """The grid that the format's observer finds.

    Args:
        weight: [out, in]; for activations [tokens, in], where a token is a row.
        form: What to round to.
        name: Of the layer, for messages.
        dtype: Of the model that is saved: scales of ints and fp8 are stored in it, and rounded
            to it before the weights are rounded to them. None: the weight's own.
        costs: [in], what squared errors in each column count for; only mse looks at errors.

    Raises:
        InputError: See `check`.
    """
    check(weight, form, name)
    grouped = in_groups(weight, form)
    if not grouped.numel():
        grouped = grouped.new_zeros(*grouped.shape[:2], 1)
    if costs is not None and form.observer == "mse" and weight.numel():
        low, high = mse.bounds(grouped, form, in_groups(costs.expand_as(weight), form))
    else:
        observer = import_module(f"ridgeline.compress.observers.{form.observer}")
        low, high = observer.bounds(grouped, form)
    return grid_between(low, high, form, dtype or weight.dtype, whole_scale(weight, form))


def to_nearest(
    weight: Tensor,
    form: NumberFormat,
    name: str = "a weight",
    *,
    dtype: torch.dtype | None = None,
) -> Quantised:
    """Each weight rounded to the nearest level of its `grid`, by itself.

    Raises:
        InputError: See `check`.
    """
    return on_grid(weight, grid(weight, form, name, dtype=dtype))


def on_grid(weight: Tensor, found: Grid) -> Quantised:
    """The nearest levels of a grid, ready to be saved; of values on the grid, exactly those."""
    return Quantised(
        format=found.format,
        levels=levels(weight, found),
        scales=found.scales,
        zeros=found.zeros,
        global_scale=found.global_scale,
    )
