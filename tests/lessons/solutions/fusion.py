"""An answer to the exercise of the lesson fusion."""

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, b, r, out, size, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    value = tl.load(x + places, mask=inside) + tl.load(b + places, mask=inside)
    value = value / (1.0 + tl.exp(-value)) * tl.load(r + places, mask=inside)
    tl.store(out + places, value, mask=inside)


def solve(x, b, r):
    out = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 1024),)](x, b, r, out, x.numel(), BLOCK=1024)
    return out
