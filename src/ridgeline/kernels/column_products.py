"""Sums of the products of all pairs of columns: the upper triangle of xᵀx, half of its products.

    sums[i, j] += Σ_t x[t, i] x[t, j]        j ≥ i; what it leaves below the diagonal is undefined

Products of bfloat16 numbers are exact in float32, which they are summed in: PyTorch has no matmul
on a CPU that takes the one and returns the other, and multiplies float32 at half the speed or less
(`cpu/column_products.cpp`). CPU only.

Rounded to bytes they take half of that time (`cpu/rounded_products.cpp`). Of each slab of at most
1,024 tokens every column is rounded to 255 steps between its largest magnitudes, so that what is
lost of its energy is 1024 / (12 · 127²), 0.5 %, at most, and 0.006 % where numbers are normal:
noise that has nothing to do with other columns and stays below what GPTQ adds to the diagonal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.kernels.cpu.build import have, load
from ridgeline.kernels.cpu.compiler import settings

LIBRARY = "column_products"

torch.library.define("ridgeline::add_column_products", "(Tensor(a!) sums, Tensor x) -> ()")

torch.library.define("ridgeline::add_rounded_products", "(Tensor(a!) sums, Tensor x) -> ()")


def have_kernel() -> bool:
    """Whether it is compiled and loaded, which the first call sees to."""
    return have(LIBRARY, "until then sums of products take twice as long")


def rounded_is_faster() -> bool:
    """Whether the kernel is there, and compiled for a CPU that multiplies four bytes at once."""
    return have_kernel() and settings().multiplies_bytes


def add_column_products(sums: Tensor, x: Tensor) -> None:
    """Add to the upper triangle of `sums` [n, n] float32, for x [tokens, n] bfloat16.

    Raises:
        InputError: The kernel cannot be compiled.
    """
    load(LIBRARY)
    torch.ops.ridgeline.add_column_products(sums, x.contiguous())


def add_rounded_products(sums: Tensor, x: Tensor) -> None:
    """Add to the upper triangle of `sums` what the numbers come to once they are bytes.

    Raises:
        InputError: The kernel cannot be compiled.
    """
    load(LIBRARY)
    torch.ops.ridgeline.add_rounded_products(sums, x.contiguous())


def reference(sums: Tensor, x: Tensor) -> None:
    """The products in float64, then rounded, added above and on the diagonal."""
    wide = x.double()
    sums += (wide.T @ wide).triu().to(sums.dtype)
