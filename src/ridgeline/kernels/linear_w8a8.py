"""Linear layers with int8 weights and activations rounded to int8 ("W8A8").

    xq = clamp(round(x / a), −128, 127)    a[m] = max_k |x[m, k]| / 127.5, or fixed by calibration
    out[m, o] = a[m] s[o] Σ_k xq[m, k] q[o, k] + b[o]

As compressed-tensors' "int-quantized" with symmetric activations, dynamic per token or static.
Twice as many multiplications per second as bf16 (VNNI), which long prompts and large batches feel;
one decode reads as many bytes as with 8-bit weights alone: `cpu/linear_w8a8.cpp`. CPU only.

P panels of 32 outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.kernels.cpu.build import load
from ridgeline.kernels.linear import rows_by_panel

torch.library.define(
    "ridgeline::linear_w8a8",
    "(Tensor x, Tensor panels, Tensor scales, Tensor sums, Tensor? bias, int outputs, "
    "float? step, bool portable) -> Tensor",
)


@torch.library.register_fake("ridgeline::linear_w8a8")
def _(  # the operator's signature
    x: Tensor,
    panels: Tensor,  # noqa: ARG001
    scales: Tensor,  # noqa: ARG001
    sums: Tensor,  # noqa: ARG001
    bias: Tensor | None,  # noqa: ARG001
    outputs: int,
    step: float | None,  # noqa: ARG001
    portable: bool,  # noqa: ARG001
) -> Tensor:
    return x.new_empty((*x.shape[:-1], outputs))


def pack(quantised: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[outputs, depth] int8 and [outputs, 1] as panels [P, depth / 4, 128], scales, sums [P · 32].

    Raises:
        InputError: The CPU kernels cannot be compiled.
    """
    load("linear_w8a8")
    panels = rows_by_panel(functional.pad(quantised, (0, -quantised.shape[1] % 4))).unflatten(
        2, (-1, 4)
    )
    sums = 128 * panels.sum((2, 3), dtype=torch.int32).flatten()
    wide = rows_by_panel(scales.float()).flatten().contiguous()
    return panels.transpose(1, 2).flatten(2).contiguous(), wide, sums.contiguous()


def unpack(panels: Tensor, outputs: int, depth: int) -> Tensor:
    """The quantised weight that was packed."""
    rows = panels.unflatten(2, (-1, 4)).transpose(1, 2).flatten(2).flatten(0, 1)
    return rows[:outputs, :depth].contiguous()


def linear(
    x: Tensor,
    panels: Tensor,
    scales: Tensor,
    sums: Tensor,
    bias: Tensor | None,
    outputs: int,
    step: float | None = None,
) -> Tensor:
    """[..., depth] to [..., outputs], in x's dtype: bfloat16 or float32.

    Args:
        x: Any number of rows.
        panels: From `pack`, as the next two.
        scales: float32.
        sums: int32.
        bias: [outputs] float32.
        outputs: The weight's number of outputs.
        step: `a` of all rows; None: each row's own.
    """
    return torch.ops.ridgeline.linear_w8a8.default(
        x, panels, scales, sums, bias, outputs, step, False
    )


def reference(
    x: Tensor,
    quantised: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    step: float | None = None,
) -> Tensor:
    """The layer with sums in float64, which holds them exactly, and inputs rounded alike."""
    wide = x.float()
    steps = wide.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127.5
    if step is not None:
        steps = torch.full_like(steps, step)
    levels = (wide / steps).round().clamp(-128, 127).double()
    out = functional.linear(levels, quantised.double()) * (
        steps.double() * scales.double().flatten()
    )
    return (out if bias is None else out + bias).to(x.dtype)
