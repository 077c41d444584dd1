"""What the activations of a layer are quantised to, and quantising them as PyTorch computes.

It tells what compression costs in quality; it is no faster than the model as it was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.quantised import ActivationScales
from ridgeline.compress import rounding
from ridgeline.compress.rounding import Grid
from ridgeline.compress.watching.statistics import CalibrationStatistics
from ridgeline.kernels.number_formats import nvfp4
from ridgeline.records.scheme import NumberFormat


def fields_of(form: NumberFormat) -> frozenset[str]:
    """The fields of `CalibrationStatistics` that `activation_scales` looks at."""
    if form.dynamic and form.kind != "nvfp4":
        return frozenset()
    return frozenset({"max_abs", "rows"})


def activation_scales(
    form: NumberFormat | None, seen: CalibrationStatistics
) -> ActivationScales | None:
    """The format, with a range where it is fixed beforehand.

    Where calibration never reached a layer, its range is that of −1 … 1.
    """
    if form is None:
        return None
    most = torch.ones(1) if seen.max_abs is None else seen.max_abs.amax().reshape(1)
    if form.kind == "nvfp4":
        return ActivationScales(format=form, global_scale=nvfp4.global_scale(most[0]).reshape(1))
    if form.dynamic:
        return ActivationScales(format=form)
    if form.symmetric and form.observer == "minmax":
        grid = rounding.grid_between(-most, most, form, torch.float32)
    else:
        rows = seen.rows if seen.rows is not None else most[None]
        grid = rounding.grid(rows.float(), form)
    zero = None if grid.zeros is None else grid.zeros.reshape(1)
    return ActivationScales(format=form, scale=grid.scales.reshape(1), zero=zero)


def round_activations(module: nn.Module, inputs: ActivationScales) -> Any:
    """From now on the first argument of a layer is rounded; the handle takes it back."""

    def hook(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (rounded_activations(args[0], inputs), *args[1:])

    return module.register_forward_pre_hook(hook)


def rounded_activations(x: Tensor, inputs: ActivationScales) -> Tensor:
    """[..., in] on the grid of the format, in the dtype of x.

    Dynamic ranges are a token's own (or a group's within it); static ones come with `inputs`.
    """
    flat = x.reshape(-1, x.shape[-1])
    if inputs.scale is not None:
        zeros = None if inputs.zero is None else inputs.zero.reshape(1, 1)
        grid = Grid(format=inputs.format, scales=inputs.scale.reshape(1, 1), zeros=zeros)
    else:
        parts = rounding.in_groups(flat, inputs.format)
        grid = rounding.grid_between(
            parts.amin(-1), parts.amax(-1), inputs.format, flat.dtype, inputs.global_scale
        )
    return rounding.rounded(flat, grid).reshape(x.shape)
