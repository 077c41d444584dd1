"""A scaled sum whose second input is read by the stride of the first: here both are the same."""

import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x, y, out, x_stride, y_stride, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    a = tl.load(x + row * x_stride + columns, mask=inside, other=0.0)
    b = tl.load(y + row * x_stride + columns, mask=inside, other=0.0)
    tl.store(out + row * size + columns, a + b, mask=inside)


def example():
    x, y = torch.randn(7, 100), torch.randn(7, 100)
    out = torch.empty(7, 100)
    sum_kernel[(7,)](x, y, out, x.stride(0), y.stride(0), 100, BLOCK=128)
    return out, x.double() + y.double()
