"""Sums of the products of all pairs of columns: the upper triangle of xᵀx, half of its products.

    sums[i, j] += Σ_t x[t, i] x[t, j]        j ≥ i; what it leaves below the diagonal is undefined

Products of bfloat16 numbers are exact in float32, which they are summed in: PyTorch has no matmul
on a CPU that takes the one and returns the other, and multiplies float32 at half the speed or less
(`cpu/column_products.cpp`). CPU only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.cpu.build import have, load

LIBRARY = "column_products"

torch.library.define("ridgeline::add_column_products", "(Tensor(a!) sums, Tensor x) -> ()")


def have_kernel() -> bool:
    """Whether it is compiled and loaded, which the first call sees to."""
    return have(LIBRARY, "until then sums of products take twice as long")


def add_column_products(sums: Tensor, x: Tensor) -> None:
    """Add to the upper triangle of `sums` [n, n] float32, for x [tokens, n] bfloat16.

    Raises:
        InputError: The kernel cannot be compiled.
    """
    load(LIBRARY)
    torch.ops.ridgeline.add_column_products(sums, x.contiguous())


def reference(sums: Tensor, x: Tensor) -> None:
    """The products in float64, then rounded, added above and on the diagonal."""
    wide = x.double()
    sums += (wide.T @ wide).triu().to(sums.dtype)
