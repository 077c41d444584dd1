"""Two histograms, by one atomic an element and by one a block."""

import torch, triton
import triton.language as tl


@triton.jit
def histogram_kernel(x_ptr, hist_ptr, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0)
    tl.atomic_add(hist_ptr + x, 1, mask=offs < n)


@triton.jit
def histogram2_kernel(x_ptr, hist_ptr, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=BINS)
    h = tl.histogram(x, 2 * BINS)
    b = tl.arange(0, 2 * BINS)
    tl.atomic_add(hist_ptr + b, h, mask=b < BINS)


def example():
    x = torch.randint(0, 64, (5000,), dtype=torch.int32)
    h = torch.zeros(64, dtype=torch.int32)
    h2 = torch.zeros(64, dtype=torch.int32)
    histogram_kernel[(triton.cdiv(5000, 1024),)](x, h, 5000, BINS=64, BLOCK=1024)
    histogram2_kernel[(triton.cdiv(5000, 1024),)](x, h2, 5000, BINS=64, BLOCK=1024)
    want = torch.bincount(x, minlength=64)
    return [(h, want), (h2, want)]
