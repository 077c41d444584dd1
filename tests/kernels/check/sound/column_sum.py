"""The sum of each column, with a block of rows per program."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803  (Triton kernels, written as their users write them)

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def column_sum_kernel(x, out, num_rows, size, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Add one block of rows to the sums."""
    columns = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0) * ROWS
    for row in range(first, min(first + ROWS, num_rows)):
        total += tl.load(x + row * size + columns, mask=columns < size, other=0.0)
    tl.atomic_add(out + columns, total, mask=columns < size)


def example():
    """Sum 45 rows of 100 in blocks of 8."""
    x = torch.randn(45, 100)
    out = torch.zeros(100)
    column_sum_kernel[(6,)](x, out, 45, 100, ROWS=8, BLOCK=128, num_warps=4)
    return out, x.double().sum(0)
