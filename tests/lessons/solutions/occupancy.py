"""An answer to the exercise of the lesson occupancy."""

import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x, out, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + places, tl.load(x + places))


def solve(x):
    out = torch.empty_like(x)
    copy_kernel[(x.numel() // 8192,)](x, out, BLOCK=8192, num_warps=4)
    return out
