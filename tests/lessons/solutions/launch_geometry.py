"""An answer to the exercise of the lesson launch-geometry."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, size, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    total = tl.load(x + places, mask=inside) + tl.load(y + places, mask=inside)
    tl.store(out + places, total, mask=inside)


def solve(x, y):
    out = torch.empty_like(x)
    size = x.numel()
    add_kernel[(triton.cdiv(size, 64),)](x, y, out, size, BLOCK=64, num_warps=4)
    return out
