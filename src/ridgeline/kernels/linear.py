"""Linear layers whose weights lie packed in panels, in the order in which they are multiplied.

    out = x Wᵀ + b        x [..., depth], W [outputs, depth], b [outputs]

bfloat16, float32 and float16 weights. Sums are float32 in the order of the depth, whatever the
number of rows: a row's result is the same bit by bit, alone or in a batch. One weight read from
memory serves up to 12 rows (decodes of several sequences), and the same panels serve prefill, so
weights are stored once. `cpu/linear_panels.h` describes the layout and the arithmetic.

P panels of 32 outputs; the last one is filled up with zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.kernels.cpu.build import load

PANEL = 32
"""Outputs of a panel."""

torch.library.define(
    "ridgeline::linear_dense",
    "(Tensor x, Tensor panels, Tensor? bias, int outputs, bool portable) -> Tensor",
)


@torch.library.register_fake("ridgeline::linear_dense")
def _(x: Tensor, panels: Tensor, bias: Tensor | None, outputs: int, portable: bool) -> Tensor:  # noqa: ARG001 - the operator's signature
    return x.new_empty((*x.shape[:-1], outputs))


def pack(weight: Tensor) -> Tensor:
    """[outputs, depth] as panels: bf16 [P, depth / 2, 32, 2], other dtypes [P, depth, 32].

    Raises:
        InputError: The CPU kernels cannot be compiled.
    """
    load("core")
    panels = rows_by_panel(weight)
    if weight.dtype != torch.bfloat16:
        return panels.transpose(1, 2).contiguous()
    panels = functional.pad(panels, (0, panels.shape[2] % 2)).unflatten(2, (-1, 2))
    return panels.transpose(1, 2).contiguous()


def unpack(panels: Tensor, outputs: int, depth: int) -> Tensor:
    """The weight that was packed."""
    rows = panels.transpose(1, 2).flatten(2) if panels.ndim == 4 else panels.transpose(1, 2)
    return rows.flatten(0, 1)[:outputs, :depth].contiguous()


def linear(x: Tensor, panels: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
    """[..., depth] to [..., outputs], in x's dtype: bfloat16 or float32.

    Args:
        x: The inputs, float32 where the weights are float32 or float16.
        panels: From `pack`.
        bias: [outputs] float32.
        outputs: The weight's number of outputs.
    """
    return torch.ops.ridgeline.linear_dense.default(x, panels, bias, outputs, False)


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The layer in float64, rounded once."""
    wide = None if bias is None else bias.double()
    return functional.linear(x.double(), weight.double(), wide).to(x.dtype)


def rows_by_panel(values: Tensor) -> Tensor:
    """[outputs, …] as [P, 32, …], filled up with zeros."""
    missing = -values.shape[0] % PANEL
    if missing:
        values = torch.cat((values, values.new_zeros(missing, *values.shape[1:])))
    return values.unflatten(0, (-1, PANEL))
