"""What the inputs of a layer are rounded to, from what calibration saw."""

from __future__ import annotations

import torch

from ridgeline.checkpoints.quantised import ActivationScales
from ridgeline.compress import rounding
from ridgeline.compress.watching.seen import Seen
from ridgeline.kernels.number_formats import nvfp4
from ridgeline.records.scheme import NumberFormat


def fields_of(form: NumberFormat) -> frozenset[str]:
    """Of `Seen`, for `inputs_of`."""
    if form.dynamic and form.kind != "nvfp4":
        return frozenset()
    return frozenset({"max_abs", "rows"})


def inputs_of(form: NumberFormat | None, seen: Seen) -> ActivationScales | None:
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
