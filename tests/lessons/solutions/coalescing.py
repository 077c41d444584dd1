"""An answer to the exercise of the lesson coalescing."""

import triton
import triton.language as tl


@triton.jit
def sum_kernel(x, out, rows, columns, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(rows):
        total += tl.load(x + row * columns + column, mask=column < columns, other=0.0)
    tl.store(out + column, total, mask=column < columns)


def solve(x):
    rows, columns = x.shape
    out = x.new_empty(columns)
    sum_kernel[(triton.cdiv(columns, 32),)](x, out, rows, columns, BLOCK=32, num_warps=1)
    return out
