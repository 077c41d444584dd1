"""The RMS norm of rows in bfloat16, computed in float32."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803  (Triton kernels, written as their users write them)

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x, weight, out, size, eps, BLOCK: tl.constexpr):
    """Normalise one row."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    values = tl.load(x + row * size + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / size + eps)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + columns, (values * scale * gain).to(tl.bfloat16), mask=inside)


def example():
    """Normalise 7 rows of 300."""
    x, weight = torch.randn(7, 300).bfloat16(), torch.randn(300).bfloat16()
    out = torch.empty_like(x)
    rms_norm_kernel[(7,)](x, weight, out, 300, 1e-6, BLOCK=512, num_warps=4)
    wide = x.double()
    return out, wide * (wide.square().mean(1, keepdim=True) + 1e-6).rsqrt() * weight.double()
