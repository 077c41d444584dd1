"""Modules that are put into a graph and round: tensors between layers, weights, biases.

They compute what QuantizeLinear and DequantizeLinear say, and are exported as those.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.quantised import Quantised
from ridgeline.compress import rounding
from ridgeline.kernels.number_formats.grid import grid_between
from ridgeline.kernels.number_formats.integer import bounds
from ridgeline.records.scheme import NumberFormat

_INT32 = 2**31 - 1


def load_operators() -> Any:
    """The operators of integer graphs that exporters know."""
    # They are registered by being imported.
    import torch.ao.quantization.fx._decomposed  # noqa: F401

    return torch.ops.quantized_decomposed


class RoundedTensor(nn.Module):
    """A tensor between layers on its levels; with `dynamic` the range is each batch's own."""

    def __init__(self, form: NumberFormat, ends: tuple[float, float] | None) -> None:
        super().__init__()
        self.form = form
        self.scale, self.zero = 1.0, 0
        self.unsigned = True
        if ends is not None:
            self.set_range(*ends)

    def set_range(self, low: float, high: float) -> None:
        """Levels from `low` to `high`, as `number_formats` spreads them."""
        on = grid_between(torch.tensor(low), torch.tensor(high), self.form, torch.float32)
        self.scale = float(on.scales)
        self.zero = 0 if on.zeros is None else int(on.zeros)

    def get_extra_state(self) -> dict[str, Any]:
        """Scale and zero point, which are numbers of the graph."""
        return {"scale": self.scale, "zero": self.zero}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Scale and zero point of a saved model."""
        self.scale, self.zero = state["scale"], state["zero"]

    def forward(self, x: Tensor) -> Tensor:
        """x as integers have it, in its own dtype."""
        lowest, highest = bounds(self.form.bits)
        if self.form.dynamic:
            low, high = torch.aminmax(x.detach())
            on = grid_between(low.clamp_max(0), high.clamp_min(0), self.form, torch.float32)
            zero = torch.zeros_like(on.scales) if on.zeros is None else on.zeros.float()
            steps = (x.float() / on.scales).round() + zero
            return ((steps.clamp(lowest, highest) - zero) * on.scales).to(x.dtype)
        if not torch.compiler.is_exporting():
            wide = torch.fake_quantize_per_tensor_affine(
                x.float(), self.scale, self.zero, lowest, highest
            )
            return wide.to(x.dtype)
        operators = load_operators()
        shift = -lowest if self.unsigned else 0
        dtype = torch.uint8 if self.unsigned else torch.int8
        levels = (self.scale, self.zero + shift, lowest + shift, highest + shift, dtype)
        return operators.dequantize_per_tensor(operators.quantize_per_tensor(x, *levels), *levels)


class RoundedWeight(nn.Module):
    """The weight of a layer as 8-bit levels and a scale per output channel.

    With `turned` the levels lie as [in, out], which is how runtimes multiply.
    """

    levels: Tensor
    scales: Tensor

    def __init__(self, levels: Tensor, scales: Tensor, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("levels", levels.to(torch.int8))
        self.register_buffer("scales", scales.float().reshape(-1))

    def forward(self) -> Tensor:
        """The numbers that the levels stand for, float32."""
        if torch.compiler.is_exporting():
            zeros = torch.zeros_like(self.scales, dtype=torch.int64)
            return load_operators().dequantize_per_channel(
                self.levels, self.scales, zeros, self.axis, -128, 127, torch.int8
            )
        shape = [-1 if dim == self.axis else 1 for dim in range(self.levels.ndim)]
        return self.levels.float() * self.scales.view(shape)


class RoundedBias(nn.Module):
    """A bias as 32-bit levels, whose scale is that of the products that it is added to."""

    levels: Tensor
    scales: Tensor

    def __init__(self, bias: Tensor, scales: Tensor) -> None:
        super().__init__()
        levels = (bias.double() / scales.double()).round().clamp(-_INT32, _INT32)
        self.register_buffer("levels", levels.to(torch.int32))
        self.register_buffer("scales", scales.float())

    def forward(self) -> Tensor:
        """The numbers that the levels stand for, float32."""
        if torch.compiler.is_exporting():
            zeros = torch.zeros_like(self.scales, dtype=torch.int64)
            return load_operators().dequantize_per_channel(
                self.levels, self.scales, zeros, 0, -_INT32 - 1, _INT32, torch.int32
            )
        return self.levels.float() * self.scales


def least_scales(bias: Tensor, input_scale: float) -> Tensor:
    """The smallest weight scales with which 32 bits hold the bias."""
    return bias.abs().double() / (float(_INT32) * input_scale)


def as_rows(weight: Tensor, axis: int) -> Tensor:
    """A weight as [output channels, all else], contiguous."""
    return weight.transpose(0, axis).flatten(1).contiguous()


def as_weight(rows: Tensor, like: Tensor, axis: int) -> Tensor:
    """Rows as the weight lies."""
    shape = like.transpose(0, axis).shape
    return rows.reshape(shape).transpose(0, axis).contiguous()


def rounded_weight(weight: Tensor, axis: int, found: Quantised) -> RoundedWeight:
    """What a method of `compress/methods` made of `as_rows(weight, axis)`."""
    return RoundedWeight(as_weight(found.levels, weight, axis), found.scales.float(), axis)


def to_nearest(
    weight: Tensor, axis: int, form: NumberFormat, name: str, least: Tensor | None = None
) -> Quantised:
    """Each weight's nearest level; `least` [out] bounds the scales from below."""
    rows = as_rows(weight.float(), axis)
    grid = rounding.grid(rows, form, name)
    if least is not None:
        scales = torch.maximum(grid.scales, least.to(grid.scales)[:, None])
        grid = rounding.Grid(format=grid.format, scales=scales, zeros=grid.zeros)
    return rounding.on_grid(rows, grid)
