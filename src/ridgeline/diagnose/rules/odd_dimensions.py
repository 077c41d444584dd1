"""Matrix dimensions that do not fill the tiles of the matrix units.

Tensor cores and vector units work on blocks of 8, 16 or 64; a dimension of 50257 leaves the last
block nearly empty, and misaligned rows take slower kernels. Whether it matters is read off the
matmuls themselves: those with an odd dimension against those without.
"""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline.diagnose.reading import DENSE_MATMULS, Reading, percent, total_seconds
from ridgeline.records import Finding, Operator

CAUSES = ("odd-dimensions",)

_BLOCK = 8
_LEAST = 64
"""Smaller dimensions are not worth aligning."""


def find(reading: Reading) -> list[Finding]:
    """Matmuls with an odd weight dimension that reach less of their peak than the others."""
    model = reading.model
    if model is None or not model.odd_dimensions:
        return []
    odd_sizes = {size for size in model.odd_dimensions.values() if size >= _LEAST}
    matmuls = [op for op in reading.operators(DENSE_MATMULS) if op.bound == "compute"]
    odd = [op for op in matmuls if _sizes(op) & odd_sizes]
    even = [op for op in matmuls if not any(size % _BLOCK for size in _sizes(op))]
    slow, fast = _rate(odd), _rate(even)
    if not slow or not fast or slow >= 0.9 * fast:
        return []
    seconds = total_seconds(odd)
    saved = seconds * (1 - slow / fast)
    names = ", ".join(f"{name} ({size})" for name, size in list(model.odd_dimensions.items())[:3])
    return reading.finding(
        "odd-dimensions",
        touched_seconds=seconds,
        saves_seconds=(0.3 * saved, saved),
        confidence=0.6,
        summary=f"Matmuls with a dimension that is no multiple of {_BLOCK} take "
        f"{percent(reading.share(seconds))} of the step at {percent(slow / fast)} of the rate "
        "of the others.",
        evidence={
            "odd_matmul_seconds": seconds,
            "odd_flops_per_second": slow,
            "other_flops_per_second": fast,
            "weights": names,
        },
        where=[model.forward_site],
        cure="Round the vocabulary and hidden sizes up to a multiple of 64.",
        effort="line",
    )


def _sizes(op: Operator) -> set[int]:
    return {size for shape in op.input_shapes() if len(shape) >= 2 for size in shape}


def _rate(operators: Iterable[Operator]) -> float:
    operators = list(operators)
    seconds = total_seconds(operators)
    return sum(op.flops for op in operators) / seconds if seconds else 0.0
