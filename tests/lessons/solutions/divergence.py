"""An answer to the exercise of the lesson divergence."""

import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x, mask, out, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.load(mask + places) != 0
    tl.store(out + tl.program_id(0), tl.sum(tl.where(kept, tl.load(x + places), 0.0), 0))


def solve(x, mask):
    parts = torch.empty(x.numel() // 1024)
    sum_kernel[(parts.numel(),)](x, mask.view(torch.int8), parts, BLOCK=1024)
    return parts.sum()
