"""A grid of numbers that a matrix is rounded to, of any format.

Who compresses chooses where a grid reaches (`compress/rounding.py`), who trains with few bits
takes the largest number as it comes; here is what they share. Matrix [out, in], G groups in a row
(one without groups); scales and zeros [out, G], [1, 1] for a whole tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ridgeline.kernels.number_formats import fp8, integer, mx, nvfp4
from ridgeline.records.scheme import NumberFormat

_FP8 = {"fp8_e4m3": fp8.E4M3, "fp8_e5m2": fp8.E5M2}
_MX_ELEMENTS = {"mxfp4": "e2m1", "mxfp8": "e4m3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The numbers that a weight may become."""

    format: NumberFormat
    scales: Tensor
    """[out, G] as they are saved (see `Quantised.scales`)."""
    zeros: Tensor | None = None
    """The zero points, [out, G] int8."""
    global_scale: Tensor | None = None
    """[1] float32, nvfp4 only."""

    def of_group(self, group: int) -> Grid:
        """The grid of one group's columns: scales and zeros [out, 1]."""
        zeros = None if self.zeros is None else self.zeros[:, group : group + 1]
        return replace(self, scales=self.scales[:, group : group + 1], zeros=zeros)


def widest(x: Tensor, form: NumberFormat) -> Grid:
    """The grid that reaches from the smallest to the largest number of each group.

    Args:
        x: [out, in], not empty; of activations [tokens, in].
        form: What to round to.
    """
    grouped = in_groups(x, form)
    return grid_between(grouped.amin(-1), grouped.amax(-1), form, x.dtype, whole_scale(x, form))


def whole_scale(x: Tensor, form: NumberFormat) -> Tensor | None:
    """The scale of a whole tensor that nvfp4 has above its groups' own."""
    if form.kind != "nvfp4":
        return None
    return nvfp4.global_scale(x.abs().amax() if x.numel() else x.new_zeros(()))


def grid_between(
    low: Tensor,
    high: Tensor,
    form: NumberFormat,
    dtype: torch.dtype,
    global_scale: Tensor | None = None,
) -> Grid:
    """The grid that reaches from `low` to `high`.

    Args:
        low: The lower ends, of any shape; scales and zeros have it too.
        high: The upper ends.
        form: What to round to.
        dtype: The dtype of scales, where the format does not say.
        global_scale: [1] float32, nvfp4 only.
    """
    largest = torch.maximum(low.abs(), high.abs())
    if form.kind in _MX_ELEMENTS:
        powers = mx.exponents(largest, _MX_ELEMENTS[form.kind], round_up=form.round_up)
        return Grid(format=form, scales=powers)
    if form.kind == "nvfp4":
        assert global_scale is not None
        scales = nvfp4.scales(largest, global_scale)
        return Grid(format=form, scales=scales, global_scale=global_scale)
    if form.kind != "int":
        return Grid(format=form, scales=_stored(fp8.scale(low, high, _FP8[form.kind]), dtype))
    if form.symmetric:
        scales = integer.symmetric_scale(low, high, form.bits)
        return Grid(format=form, scales=_stored(scales, dtype))
    scales = _stored(integer.affine_scale(low, high, form.bits), dtype)
    zeros = integer.zero_points(low, scales, form.bits)
    # Of a group of zeros any point will do; this is what compressed-tensors writes.
    zeros = torch.where(largest == 0, 0, zeros).to(torch.int8)
    return Grid(format=form, scales=scales, zeros=zeros)


def levels(x: Tensor, on: Grid) -> Tensor:
    """The nearest levels as int8, float8 or fp4 codes, in the shape of x.

    Args:
        x: [out, in] with all of a grid's groups, or [out, n] within a group of `Grid.of_group`.
        on: The grid.
    """
    scales, zeros, parts = _beside(x, on)
    kind = on.format.kind
    if kind == "int":
        return integer.encode(parts, scales, zeros, on.format.bits).reshape(x.shape)
    if kind in _MX_ELEMENTS:
        return mx.encode(parts, scales, _MX_ELEMENTS[kind]).reshape(x.shape)
    if kind == "nvfp4":
        assert on.global_scale is not None
        return nvfp4.encode(parts, scales, on.global_scale).reshape(x.shape)
    return fp8.encode(parts, scales, _FP8[kind]).reshape(x.shape)


def value(of: Tensor, on: Grid) -> Tensor:
    """What levels stand for, float32."""
    scales, zeros, parts = _beside(of, on)
    if on.format.kind in _MX_ELEMENTS:
        return mx.decode(parts, scales).reshape(of.shape)
    if on.format.kind == "nvfp4":
        assert on.global_scale is not None
        return nvfp4.decode(parts, scales, on.global_scale).reshape(of.shape)
    return integer.decode(parts, scales, zeros).reshape(of.shape)


def nearest(x: Tensor, on: Grid) -> Tensor:
    """The nearest numbers on the grid, float32: the `value` of `levels`."""
    if on.format.kind != "int":
        return value(levels(x, on), on)
    scales, zeros, parts = _beside(x, on)
    return integer.nearest(parts, scales, zeros, on.format.bits).reshape(x.shape)


def rounded(x: Tensor, on: Grid) -> Tensor:
    """The nearest numbers on the grid, in the dtype of x."""
    return nearest(x, on).to(x.dtype)


def in_groups(weight: Tensor, form: NumberFormat) -> Tensor:
    """The numbers that share a scale along the last axis, [out, G, group]."""
    if form.share == "tensor":
        return weight.reshape(1, 1, -1)
    if form.group is not None:
        return weight.unflatten(1, (-1, form.group))
    return weight.unsqueeze(1)


def _beside(x: Tensor, on: Grid) -> tuple[Tensor, Tensor | None, Tensor]:
    """Scales and zeros [out, G, 1] beside x [out, G, in / G]."""
    groups = on.scales.shape[1]
    parts = x.unflatten(1, (groups, x.shape[1] // max(1, groups)))
    zeros = None if on.zeros is None else on.zeros.unsqueeze(-1)
    return on.scales.unsqueeze(-1), zeros, parts


def _stored(scales: Tensor, dtype: torch.dtype) -> Tensor:
    """In the dtype that is saved; where that is 0, its epsilon: all levels are 0 then."""
    stored = scales.to(dtype)
    return torch.where(stored == 0, torch.finfo(dtype).eps, stored).to(dtype)
