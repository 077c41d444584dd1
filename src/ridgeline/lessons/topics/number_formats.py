"""A format's mantissa says how finely it counts, and a sum in it stops growing."""

from __future__ import annotations

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)
from collections.abc import Iterator
from functools import partial
from types import ModuleType

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.lessons.shape import Calls, CountedLesson, Figures, marked, right, solution
from ridgeline.lessons.triton_counts import watched
from ridgeline.records.lesson import LessonMark, LessonTable

ORDER = 14
WHY = (
    "With m bits of mantissa, numbers between 1 and 2 lie 2^-m apart, so rounding errs by half of "
    "that and 1 + ... + 1 stops at 2^(m+1): data may be narrow, sums must be wide."
)
ON_A_GPU = "matmuls in float32, tf32, bfloat16 and float16 are timed at 4,096 cubed"
TASK = (
    "solve(x) sums each row of a bfloat16 matrix of 8 x 512 into float32 by a Triton kernel; be "
    "within 1e-6 of the sum of the same numbers in float64, and read each once."
)
FORMATS = {
    "float32": (torch.float32, 8, 23),
    "bfloat16": (torch.bfloat16, 8, 7),
    "float16": (torch.float16, 5, 10),
    "float8_e5m2": (torch.float8_e5m2, 5, 2),
}
"""Name → torch's dtype, bits of the exponent and of the mantissa, as IEEE 754 has them."""
_ONES = 512


@triton.jit
def ones_kernel(x: tl.tensor, out: tl.tensor, size: tl.tensor, WIDE: tl.constexpr) -> None:
    """Sum one after the other, in float32 or in the format of the numbers."""
    total = tl.full((), 0.0, tl.float32 if WIDE else x.dtype.element_ty)
    for at in range(size):
        total = total + tl.load(x + at).to(total.dtype)
    tl.store(out, total.to(tl.float32))


def counted(size: int, dtype: torch.dtype, *, wide: bool) -> Tensor:
    """The sum of so many ones."""
    out = torch.zeros(1)
    ones_kernel[(1,)](torch.ones(size, dtype=dtype), out, size, WIDE=wide)
    return out


def predict() -> Figures:
    """Steps, roundings and the largest number from the bits; where sums of ones end."""
    found: Figures = {}
    for name, (_, exponent, mantissa) in FORMATS.items():
        found[name] = {
            "largest error of rounding in 1 .. 2": 2.0 ** -(mantissa + 1),
            "largest number": (2 - 2.0**-mantissa) * 2.0 ** (2 ** (exponent - 1) - 1),
        }
    found[f"bad: {_ONES} ones summed in bfloat16"] = {"sum": 2.0**8}
    found[f"good: {_ONES} ones summed in float32"] = {"sum": float(_ONES)}
    return found


def observe() -> CountedLesson:
    """Round a fine grid, look for the largest number, sum ones."""
    figures: Figures = {}
    # Thirty-two points to a step: the middle between two neighbours, the worst case, is one.
    for name, (dtype, _, mantissa) in FORMATS.items():
        grid = 1 + torch.arange(2**12, dtype=torch.float64) * 2.0 ** -(mantissa + 6)
        grid = grid[grid < 2 - 2.0**-mantissa]
        rounded = grid.to(dtype)
        figures[name] = {
            "largest error of rounding in 1 .. 2": float((rounded.double() - grid).abs().max()),
            "largest number": _largest(dtype),
        }
    narrow, wide = (counted(_ONES, torch.bfloat16, wide=one) for one in (False, True))
    figures[f"bad: {_ONES} ones summed in bfloat16"] = {"sum": float(narrow)}
    figures[f"good: {_ONES} ones summed in float32"] = {"sum": float(wide)}
    results = [(wide, torch.full((1,), float(_ONES)).double())]
    return CountedLesson(figures=figures, results=results, tables=[_table()])


def _largest(dtype: torch.dtype) -> float:
    """The largest finite number among all bit patterns, found by looking at each."""
    if dtype is torch.float32:
        patterns = torch.arange(0x7F000000, 0x7F800000, 2**12, dtype=torch.int64)
        patterns = torch.cat([patterns, torch.tensor([0x7F7FFFFF, 0x7F800000])])
        values = patterns.to(torch.int32).view(torch.float32)
    elif dtype.itemsize == 2:
        values = torch.arange(2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    else:
        values = torch.arange(2**7, dtype=torch.int32).to(torch.uint8).view(dtype)
    exact = values.double()
    return float(exact[exact.isfinite()].max())


def _table() -> LessonTable:
    rows = [
        ["float32", "8 + 23", "sums, master weights"],
        ["tf32", "8 + 10", "float32 matmuls on tensor cores"],
        ["bfloat16", "8 + 7", "weights and activations: float32's range, no loss scaling"],
        ["float16", "5 + 10", "finer, but overflows at 65,504: needs loss scaling"],
        ["float8 e4m3", "4 + 3", "weights and activations with scales"],
        ["float8 e5m2", "5 + 2", "gradients with scales"],
    ]
    return LessonTable(
        title="Formats", heads=["format", "exponent + mantissa", "used for"], rows=rows
    )


def calls(device: str) -> Calls:
    """Matmuls in each format, on a GPU."""
    if device == "cpu":
        return {}
    x = torch.randn(4096, 4096, device=device)
    wide = {"float32": "highest", "tf32": "high"}

    def in_float32(precision: str) -> Tensor:
        torch.set_float32_matmul_precision(precision)
        return x @ x

    found: Calls = {name: partial(in_float32, how) for name, how in wide.items()}
    for dtype in (torch.bfloat16, torch.float16):
        narrow = x.to(dtype)
        found[str(dtype).removeprefix("torch.")] = partial(torch.matmul, narrow, narrow)
    return found


def grade(learner: ModuleType) -> Iterator[LessonMark]:
    """The sums and the bytes."""
    x = (torch.rand(8, 512) + 0.5).bfloat16() * 2.0**20  # beyond float16
    found, launches = watched(solution(learner), x)
    yield right(found, x.double().sum(1), 1e-6)
    yield marked("bytes loaded", launches.loaded_bytes, "equal", x.numel() * 2)
