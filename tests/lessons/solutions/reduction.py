"""An answer to the exercise of the lesson reduction."""

import numpy as np
from numba import cuda, float32


@cuda.jit
def sum_kernel(x, out):
    sums = cuda.shared.array(8, float32)
    t = cuda.threadIdx.x
    value = x[t]
    for delta in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, delta)
    if t % 32 == 0:
        sums[t // 32] = value
    cuda.syncthreads()
    if t < 32:
        value = sums[t] if t < 8 else 0.0
        for delta in (4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, delta)
        if t == 0:
            out[0] = value


def solve(x):
    out = np.zeros(1, np.float32)
    sum_kernel[1, 256](x, out)
    return out
