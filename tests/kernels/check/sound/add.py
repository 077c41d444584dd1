"""The sum of two vectors, whose length fills no block."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803  (Triton kernels, written as their users write them)

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, size, BLOCK: tl.constexpr):
    """Add one block."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    a = tl.load(x + places, mask=inside)
    b = tl.load(y + places, mask=inside)
    tl.store(out + places, a + b, mask=inside)


def example():
    """Add 1,000 numbers in blocks of 128."""
    x, y = torch.randn(1000), torch.randn(1000)
    out = torch.empty_like(x)
    grid = (triton.cdiv(1000, 128),)
    add_kernel[grid](x, y, out, 1000, BLOCK=128, num_warps=4)
    return out, x.double() + y.double()
