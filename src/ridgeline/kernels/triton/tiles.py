"""Tiles of numbers in kernels: their matmul, and numbers as the KV cache stores them.

The cache stores int8, and float8 e4m3 as its bits in uint8. e4m3 is converted by hand, because
sm_80 has no instruction for it: sign 1, exponent 4 (bias 7), mantissa 3 bits, no infinity, largest
448 ("FP8 formats for deep learning", 2209.05433, table 1).
"""

from __future__ import annotations

import triton
import triton.language as tl

_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
_ROUND = tl.constexpr(12582912.0)  # 1.5 · 2²³: adding it rounds a small float32 to even
_SMALLEST = tl.constexpr(1e-12)  # of a row's largest magnitude, so that zeros divide


@triton.jit
def matmul(left: tl.tensor, right: tl.tensor) -> tl.tensor:
    """[M, K] · [K, N] of one dtype, summed in float32; float32 tiles are not rounded to tf32."""
    if _INTERPRETED:  # It would multiply the bits of bfloat16 as integers.
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def tanh(x: tl.tensor) -> tl.tensor:
    """The hyperbolic tangent within 4e-7 of itself, which a difference of powers is not near 0.

    The polynomial is tanh(x) / x on |x| ≤ 0.3 in x², fitted at Chebyshev points.
    """
    square = x * x
    series = -0.33333056 + square * (0.13314674 - 0.05035468 * square)
    far = 1.0 - 2.0 / (tl.exp2(x * 2.8853900817779268) + 1.0)  # 2 log₂ e
    return tl.where(tl.abs(x) < 0.3, x + x * (square * series), far)


@triton.jit
def decoded(stored: tl.tensor) -> tl.tensor:
    """Stored numbers in a float type that holds each of them exactly; scales not applied."""
    if stored.dtype == tl.uint8:
        bits = stored.to(tl.uint16)
        # As float16, with 5 exponent bits of bias 15, the same bits mean 2⁸ times less.
        half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        value = half.to(tl.float16, bitcast=True) * 256.0
    elif stored.dtype == tl.int8:
        value = stored.to(tl.float32)
    else:
        value = stored
    return value


@triton.jit
def scale_of(row: tl.tensor, largest: tl.constexpr) -> tl.tensor:
    """What one row [D] of float32 is divided by, so that its largest number is `largest`."""
    return tl.div_rn(tl.maximum(tl.max(tl.abs(row), 0), _SMALLEST), largest + 0.0 * tl.max(row, 0))


@triton.jit
def as_int8(scaled: tl.tensor) -> tl.tensor:
    """Float32 in [-128, 127] to the nearest integer, ties to even."""
    return ((scaled + _ROUND) - _ROUND).to(tl.int8)


@triton.jit
def as_e4m3(scaled: tl.tensor) -> tl.tensor:
    """Float32 in [-448, 448] to the bits of the nearest e4m3, ties to even."""
    bits = scaled.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = bits & 0x7FFFFFFF
    # Normal: round the mantissa to 3 bits (a carry goes to the exponent), then move the bias.
    kept = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
    normal = kept - ((127 - 7) << 3)
    # Below 2⁻⁶ steps are 2⁻⁹; eight of them have the very bits of 2⁻⁶.
    steps = (tl.abs(scaled) * 512.0 + _ROUND) - _ROUND
    small = tl.abs(scaled) < 0.015625
    return (sign | tl.where(small, steps.to(tl.uint32), normal)).to(tl.uint8)
