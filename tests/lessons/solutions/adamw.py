"""An answer to the exercise of the lesson adamw."""

import triton
import triton.language as tl


@triton.jit
def step_kernel(p, g, m, v, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    gradient = tl.load(g + at, mask=inside)
    mean = 0.9 * tl.load(m + at, mask=inside) + 0.1 * gradient
    square = 0.999 * tl.load(v + at, mask=inside) + 0.001 * gradient * gradient
    step = mean / 0.1 / (tl.sqrt(square / 0.001) + 1e-8)
    tl.store(m + at, mean, mask=inside)
    tl.store(v + at, square, mask=inside)
    found = (1.0 - 1e-3 * 0.01) * tl.load(p + at, mask=inside) - 1e-3 * step
    tl.store(p + at, found, mask=inside)


def solve(p, g, m, v):
    step_kernel[(triton.cdiv(p.numel(), 1024),)](p, g, m, v, p.numel(), BLOCK=1024)
