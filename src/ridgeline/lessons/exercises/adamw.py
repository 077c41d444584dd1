"""Exercise of the lesson adamw: one step of AdamW in place, the first.

This is right, and moves 36 bytes per parameter in two passes. One pass needs 28.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def moments_kernel(m, v, g, step, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    gradient = tl.load(g + at, mask=inside)
    mean = 0.9 * tl.load(m + at, mask=inside) + 0.1 * gradient
    square = 0.999 * tl.load(v + at, mask=inside) + 0.001 * gradient * gradient
    tl.store(m + at, mean, mask=inside)
    tl.store(v + at, square, mask=inside)
    tl.store(step + at, mean / 0.1 / (tl.sqrt(square / 0.001) + 1e-8), mask=inside)


@triton.jit
def apply_kernel(p, step, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    found = (1.0 - 1e-3 * 0.01) * tl.load(p + at, mask=inside)
    tl.store(p + at, found - 1e-3 * tl.load(step + at, mask=inside), mask=inside)


def solve(p, g, m, v):
    size = p.numel()
    grid = (triton.cdiv(size, 1024),)
    step = torch.empty_like(p)
    moments_kernel[grid](m, v, g, step, size, BLOCK=1024)
    apply_kernel[grid](p, step, size, BLOCK=1024)
