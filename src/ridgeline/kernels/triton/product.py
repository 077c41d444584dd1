"""The product of two tiles on tensor cores, float32 where they are."""

from __future__ import annotations

import triton
import triton.language as tl

_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def product(left: tl.tensor, right: tl.tensor) -> tl.tensor:
    """[M, K] · [K, N] of one dtype, summed in float32; float32 tiles are not rounded to tf32."""
    if _INTERPRETED:  # It would multiply the bits of bfloat16 as integers.
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")
