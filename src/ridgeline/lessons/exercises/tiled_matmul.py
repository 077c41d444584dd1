"""Exercise of the lesson tiled-matmul: multiply two matrices of 64 x 64.

This is right, and loads twice as much as it may. Change the
tile so that at most 65,536 bytes are loaded.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a, b, out, size, TILE: tl.constexpr):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), tl.float32)
    for first in range(0, size, TILE):
        along = first + tl.arange(0, TILE)
        left = tl.load(a + row[:, None] * size + along[None, :])
        right = tl.load(b + along[:, None] * size + column[None, :])
        total += tl.dot(left, right, input_precision="ieee")
    tl.store(out + row[:, None] * size + column[None, :], total)


def solve(a, b):
    size = a.shape[0]
    out = torch.empty_like(a)
    matmul_kernel[(size // 16, size // 16)](a, b, out, size, TILE=16, num_warps=4)
    return out
