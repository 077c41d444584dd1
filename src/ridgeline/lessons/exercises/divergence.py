"""Exercise of the lesson divergence: sum the numbers whose mask is set.

This copies the numbers that are kept first. Read x and mask once, in one kernel, and let it write
one sum per block; the length is a multiple of 1,024.
"""

import triton
import triton.language as tl


@triton.jit
def sum_kernel(x, out, size, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(x + places, mask=places < size, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(found, 0))


@triton.jit
def gather_kernel(x, indices, out, size, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    found = tl.load(x + tl.load(indices + places, mask=inside, other=0), mask=inside)
    tl.store(out + places, found, mask=inside)


def solve(x, mask):
    indices = mask.nonzero().flatten()
    size = indices.numel()
    grid = (triton.cdiv(size, 1024),)
    kept, parts = x.new_empty(size), x.new_empty(grid[0])
    gather_kernel[grid](x, indices, kept, size, BLOCK=1024)
    sum_kernel[grid](kept, parts, size, BLOCK=1024)
    return parts.sum()
