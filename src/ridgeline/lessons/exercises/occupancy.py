"""Exercise of the lesson occupancy: copy numbers with many bytes under way.

This is right, and each thread asks for 4 bytes. Let each ask for 64 or more, 16 at a time.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x, out, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + places, tl.load(x + places))


def solve(x):
    out = torch.empty_like(x)
    copy_kernel[(x.numel() // 128,)](x, out, BLOCK=128, num_warps=4)
    return out
