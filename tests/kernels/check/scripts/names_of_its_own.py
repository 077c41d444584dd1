"""A file that has its own names for functions of the language, as those that suit many releases."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

fast_exp = tl.math.exp
load = tl.load


@triton.jit
def sigmoid_kernel(x, out, size, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    found = 1.0 / (1.0 + fast_exp(-load(x + places, mask=inside)))
    tl.store(out + places, found, mask=inside)


def example():
    x = torch.randn(1000)
    out = torch.empty_like(x)
    sigmoid_kernel[(8,)](x, out, 1000, BLOCK=128)
    return out, x.double().sigmoid()
