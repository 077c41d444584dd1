"""Every second number: lanes behind the end begin anew, and write what is there already."""

import torch
import triton
import triton.language as tl


@triton.jit
def every_second(x, out, size, BLOCK: tl.constexpr):
    places = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) % size
    tl.store(out + places, tl.load(x + 2 * places))


def example():
    x, out = torch.randn(200), torch.empty(100)
    every_second[(2,)](x, out, 100, BLOCK=64)
    return out, x[::2].double()
