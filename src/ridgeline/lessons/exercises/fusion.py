"""Exercise of the lesson fusion: silu(x + b) * r.

This is right, and moves six vectors. Let one kernel move four.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def add_silu_kernel(x, b, out, size, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    value = tl.load(x + places, mask=inside) + tl.load(b + places, mask=inside)
    tl.store(out + places, value / (1.0 + tl.exp(-value)), mask=inside)


@triton.jit
def multiply_kernel(x, r, out, size, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    product = tl.load(x + places, mask=inside) * tl.load(r + places, mask=inside)
    tl.store(out + places, product, mask=inside)


def solve(x, b, r):
    size = x.numel()
    grid = (triton.cdiv(size, 1024),)
    activated, out = torch.empty_like(x), torch.empty_like(x)
    add_silu_kernel[grid](x, b, activated, size, BLOCK=1024)
    multiply_kernel[grid](activated, r, out, size, BLOCK=1024)
    return out
