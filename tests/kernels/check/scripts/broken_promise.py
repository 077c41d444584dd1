"""A stride of 24 that is said to be a multiple of 16; places that wrap keep what is said of them."""

import torch, triton
import triton.language as tl


@triton.jit
def k(x, out, n, stride, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    from_ = tl.max_contiguous(tl.multiple_of(o % n, BLOCK), BLOCK)
    stride = tl.multiple_of(stride, 16)
    tl.store(out + o, tl.load(x + from_ * stride), mask=o < n)


def example():
    x, out = torch.randn(100, 24), torch.empty(100)
    k[(4,)](x, out, 100, x.stride(0), BLOCK=32)
    return out, x[:, 0].double()
