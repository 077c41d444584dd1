"""Columns are rounded one by one, and those after them make up for the error, as GPTQ walks.

    e = (w − q) / U[j, j],    W[j + 1:] −= U[j, j + 1:]ᵀ e

with q the nearest number on the grid of integers of the column's group (Frantar et al., "GPTQ",
arXiv 2210.17323, algorithm 1). A matrix [out, in] lies transposed, [in, out]. PyTorch takes
some ten calls a column for it, the kernel one for all (`cpu/column_walk.cpp`). CPU only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.cpu.build import have, load
from ridgeline.kernels.number_formats import integer

LIBRARY = "integer_rounding"

torch.library.define(
    "ridgeline::walk_columns",
    "(Tensor(a!) rest, Tensor factor, Tensor scales, Tensor? zeros, Tensor groups, Tensor? stays, "
    "int bits) -> ()",
)


def have_kernel() -> bool:
    """Whether it is compiled and loaded, which the first call sees to."""
    return have(LIBRARY, "until then GPTQ rounds at a quarter of the speed")


def walk_columns(
    rest: Tensor,
    factor: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    groups: Tensor,
    stays: Tensor | None,
    bits: int,
) -> None:
    """Round all columns of `rest` in place.

    Args:
        rest: [in, out] float32, contiguous.
        factor: [in, in] float32, upper triangular.
        scales: [G, out] float32, the step of each group of columns.
        zeros: [G, out] float32, of an affine format the levels that stand for 0.
        groups: [in] int64, the group of each column.
        stays: [in, out] bool, False where a number becomes 0.
        bits: Of the integers, 2 to 8.

    Raises:
        InputError: The kernel cannot be compiled.
    """
    load(LIBRARY)
    torch.ops.ridgeline.walk_columns(rest, factor.contiguous(), scales, zeros, groups, stays, bits)


def reference(
    rest: Tensor,
    factor: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    groups: Tensor,
    stays: Tensor | None,
    bits: int,
) -> None:
    """The same column by column, with PyTorch."""
    for column, group in enumerate(groups.tolist()):
        now = rest[column].clone()
        zero = None if zeros is None else zeros[group]
        value = integer.nearest(now, scales[group], zero, bits)
        if stays is not None:
            value = value * stays[column]
        row = factor[column, column:]
        rest[column] = value
        rest[column + 1 :].addr_(row[1:], (now - value) / row[0], alpha=-1)
