"""A kernel that reads what other threads of its program wrote, with no barrier between."""

import torch, triton
import triton.language as tl


@triton.jit
def scan_twice(x, tmp, y, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(tmp + o, tl.load(x + o, mask=o < n, other=0.0) * 2, mask=o < n)
    tl.store(y + o, tl.load(tmp + n - 1 - o, mask=o < n, other=0.0), mask=o < n)


def example():
    x = torch.randn(200)
    t = torch.empty(200)
    y = torch.empty(200)
    scan_twice[(1,)](x, t, y, 200, BLOCK=256)
    return y, x.double().flip(0) * 2
