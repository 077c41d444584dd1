"""Linear layers with 8-bit weights and activations as they come ("weight-only").

    out[m, o] = Σ_g s[o, g] · Σ_{k in g} x[m, k] (q[o, k] − z[o, g]) + b[o]

q int8 or float8_e4m3fn; one scale per output (one group), or one per `group` weights along the
depth; zero points for int8. Equal to multiplying by the dequantised weight (q − z) s, but for the
order of float32 roundings. Read as 8 bits, widened in registers: `cpu/linear_int8.cpp`.

P panels of 32 outputs, G groups.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.kernels.cpu.build import load
from ridgeline.kernels.linear import linear_reference, rows_by_panel

_OPERATORS = torch.library.Library("ridgeline", "FRAGMENT")
for _name in ("linear_int8", "linear_int4"):  # `linear_int4.py` says what the second computes
    _OPERATORS.define(
        f"{_name}(Tensor x, Tensor panels, Tensor scales, Tensor? zeros, Tensor? bias, "
        "int outputs, bool portable) -> Tensor"
    )


@torch.library.register_fake("ridgeline::linear_int8")
@torch.library.register_fake("ridgeline::linear_int4")
def _outputs_shape(
    x: Tensor,
    _panels: Tensor,
    _scales: Tensor,
    _zeros: Tensor | None,
    _bias: Tensor | None,
    outputs: int,
    _portable: bool,
) -> Tensor:
    return x.new_empty((*x.shape[:-1], outputs))


def quantise(weight: Tensor, peaks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Round to the nearest of 255 levels per output: ([outputs, depth] int8, [outputs, 1]).

    Args:
        weight: [outputs, depth].
        peaks: The largest magnitude of each output's weights, [outputs], where `weight` has some of
            the inputs alone: the levels are then those of the whole weight. None: it has all.
    """
    wide = weight.float()
    scales = _scales(wide, peaks, 127.0)
    return (wide / scales).round_().clamp_(-127, 127).to(torch.int8), scales


def quantise_fp8(weight: Tensor, peaks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Levels in float8_e4m3fn, whose largest is 448, and scales."""
    wide = weight.float()
    scales = _scales(wide, peaks, 448.0)
    return (wide / scales).to(torch.float8_e4m3fn), scales


def _scales(wide: Tensor, peaks: Tensor | None, levels: float) -> Tensor:
    reached = wide.abs().amax(1, keepdim=True) if peaks is None else peaks.float()[:, None]
    return reached.clamp_min(1e-12) / levels


def pack(quantised: Tensor) -> Tensor:
    """[outputs, depth] int8 or float8_e4m3fn as panels [P, depth / 2, 64] of the same dtype.

    On a GPU rows stay rows (`triton/linear_int8.py`), and so for the functions below.

    Raises:
        InputError: The CPU kernels cannot be compiled.
    """
    if quantised.is_cuda:
        from ridgeline.kernels.triton import linear_int8 as gpu

        return gpu.pack(quantised)
    load("linear_int8")
    panels = rows_by_panel(quantised.view(torch.int8))
    panels = functional.pad(panels, (0, panels.shape[2] % 2))
    # A line is [half h][lane j][byte i] in the order of outputs, [j][h][i] as it is stored.
    lines = panels.unflatten(2, (-1, 2)).transpose(1, 2).reshape(*_lines(panels), 2, 4, 8)
    return lines.transpose(2, 3).flatten(2).contiguous().view(quantised.dtype)


def unpack(panels: Tensor, outputs: int, depth: int) -> Tensor:
    """The quantised weight that was packed."""
    if panels.is_cuda:
        return panels
    lines = panels.view(torch.int8).unflatten(2, (4, 2, 8)).transpose(2, 3)
    rows = lines.reshape(*panels.shape[:2], 32, 2).transpose(1, 2).flatten(2).flatten(0, 1)
    return rows[:outputs, :depth].contiguous().view(panels.dtype)


def pack_groups(values: Tensor) -> Tensor:
    """Scales or zero points [outputs, G] as [P, G, 32]."""
    if values.is_cuda:
        return values.T.contiguous()
    return rows_by_panel(values).transpose(1, 2).contiguous()


def unpack_groups(packed: Tensor, outputs: int) -> Tensor:
    """The scales or zero points that were packed."""
    if packed.is_cuda:
        return packed.T.contiguous()
    return packed.transpose(1, 2).flatten(0, 1)[:outputs].contiguous()


def linear(
    x: Tensor,
    panels: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    bias: Tensor | None,
    outputs: int,
) -> Tensor:
    """[..., depth] to [..., outputs], in x's dtype: bfloat16 or float32.

    Args:
        x: Any number of rows.
        panels: From `pack`.
        scales: From `pack_groups`, float32 or bfloat16.
        zeros: Zero points laid out as the scales, int8; None: symmetric.
        bias: [outputs] float32.
        outputs: The weight's number of outputs.
    """
    if x.is_cuda:
        from ridgeline.kernels.triton import linear_int8 as gpu

        return gpu.linear(x, panels, scales, zeros, bias)
    return torch.ops.ridgeline.linear_int8.default(x, panels, scales, zeros, bias, outputs, False)


def dequantise(quantised: Tensor, scales: Tensor, zeros: Tensor | None = None) -> Tensor:
    """[outputs, depth] float32 of [outputs, depth] and [outputs, G] scales and zero points."""
    group = quantised.shape[1] // scales.shape[1]
    wide = quantised.float().unflatten(1, (-1, group))
    if zeros is not None:
        wide = wide - zeros.float()[..., None]
    return (wide * scales.float()[..., None]).flatten(1)


def reference(
    x: Tensor, quantised: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None
) -> Tensor:
    """The layer over the dequantised weight, in float64."""
    return linear_reference(x, dequantise(quantised, scales, zeros), bias)


def _lines(panels: Tensor) -> tuple[int, int]:
    return panels.shape[0], panels.shape[2] // 2
