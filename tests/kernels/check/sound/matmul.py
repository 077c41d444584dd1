"""A product of matrices in bfloat16 whose sizes fill no tile."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803  (Triton kernels, written as their users write them)

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a, b, out, M, N, K, a_stride, b_stride, out_stride, TILE: tl.constexpr):
    """Compute one tile."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, K, TILE):
        along = start + tl.arange(0, TILE)
        left_in = (rows < M)[:, None] & (along < K)[None, :]
        left = tl.load(a + rows[:, None] * a_stride + along[None, :], mask=left_in, other=0.0)
        right_in = (along < K)[:, None] & (columns < N)[None, :]
        right = tl.load(b + along[:, None] * b_stride + columns[None, :], mask=right_in, other=0.0)
        total += tl.dot(left, right)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    place = out + rows[:, None] * out_stride + columns[None, :]
    tl.store(place, total.to(tl.bfloat16), mask=inside)


def example():
    """Multiply 50 x 130 by 130 x 70."""
    a, b = torch.randn(50, 130).bfloat16(), torch.randn(130, 70).bfloat16()
    out = torch.empty(50, 70, dtype=torch.bfloat16)
    strides = (a.stride(0), b.stride(0), out.stride(0))
    matmul_kernel[(2, 3)](a, b, out, 50, 70, 130, *strides, TILE=32, num_warps=4)
    return out, a.double() @ b.double()
