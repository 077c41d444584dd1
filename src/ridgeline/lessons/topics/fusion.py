"""What is computed in one pass is read once: fusion saves bytes, not arithmetic."""

from __future__ import annotations

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)
from collections.abc import Iterator
from types import ModuleType

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.lessons.shape import Calls, CountedLesson, Figures, marked, right, solution
from ridgeline.lessons.triton_counts import watched
from ridgeline.records.lesson import LessonMark

ORDER = 9
WHY = (
    "Element-wise work is bound by memory, so its time is its bytes: three kernels read and write "
    "eight vectors where one kernel reads three and writes one."
)
ON_A_GPU = "both are timed on 16 Mi numbers, where they should differ by about the ratio of bytes"
TASK = (
    "solve(x, b, r) returns silu(x + b) * r by Triton for float32 vectors of 3,000; move at most "
    "four vectors."
)
_SIZE = 3000
_BLOCK = 1024


@triton.jit
def add_kernel(
    x: tl.tensor, b: tl.tensor, out: tl.tensor, size: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """Compute x + b."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    total = tl.load(x + places, mask=inside) + tl.load(b + places, mask=inside)
    tl.store(out + places, total, mask=inside)


@triton.jit
def silu_kernel(x: tl.tensor, out: tl.tensor, size: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Compute x / (1 + exp(-x))."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    value = tl.load(x + places, mask=inside)
    tl.store(out + places, value / (1.0 + tl.exp(-value)), mask=inside)


@triton.jit
def multiply_kernel(
    x: tl.tensor, r: tl.tensor, out: tl.tensor, size: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """Compute x * r."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    product = tl.load(x + places, mask=inside) * tl.load(r + places, mask=inside)
    tl.store(out + places, product, mask=inside)


@triton.jit
def fused_kernel(
    x: tl.tensor, b: tl.tensor, r: tl.tensor, out: tl.tensor, size: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """Compute silu(x + b) * r."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    value = tl.load(x + places, mask=inside) + tl.load(b + places, mask=inside)
    value = value / (1.0 + tl.exp(-value)) * tl.load(r + places, mask=inside)
    tl.store(out + places, value, mask=inside)


def bad(x: Tensor, b: Tensor, r: Tensor) -> Tensor:
    """Launch one kernel per operation."""
    size, grid = x.numel(), (triton.cdiv(x.numel(), _BLOCK),)
    total, activated, out = (torch.empty_like(x) for _ in range(3))
    add_kernel[grid](x, b, total, size, BLOCK=_BLOCK)
    silu_kernel[grid](total, activated, size, BLOCK=_BLOCK)
    multiply_kernel[grid](activated, r, out, size, BLOCK=_BLOCK)
    return out


def good(x: Tensor, b: Tensor, r: Tensor) -> Tensor:
    """Launch one kernel for all."""
    out = torch.empty_like(x)
    fused_kernel[(triton.cdiv(x.numel(), _BLOCK),)](x, b, r, out, x.numel(), BLOCK=_BLOCK)
    return out


def reference(x: Tensor, b: Tensor, r: Tensor) -> Tensor:
    """The sum and activation in PyTorch."""
    return torch.nn.functional.silu(x + b) * r


def predict() -> Figures:
    """Vectors that each kernel reads and writes, of four bytes a number."""
    vector = 4.0 * _SIZE
    return {
        "bad: three kernels": {"bytes moved": (3 + 2 + 3) * vector, "launches": 3.0},
        "good: one kernel": {"bytes moved": 4 * vector, "launches": 1.0},
    }


def observe() -> CountedLesson:
    """Count the bytes of both."""
    given = [torch.randn(_SIZE) for _ in range(3)]
    exact = reference(*(one.double() for one in given))
    figures: Figures = {}
    results = []
    for name, kernel in (("bad: three kernels", bad), ("good: one kernel", good)):
        out, launches = watched(kernel, *given)
        figures[name] = {
            "bytes moved": float(launches.moved_bytes),
            "launches": float(len(launches.seen)),
        }
        results.append((out, exact))
    return CountedLesson(figures=figures, results=results)


def calls(device: str) -> Calls:
    """On a CPU the three operations over whole vectors, and over pieces that stay in its cache."""
    size = 2**22 if device == "cpu" else 2**24
    given = [torch.randn(size, device=device) for _ in range(3)]
    if device == "cuda":
        return {
            "bad: three kernels": lambda: bad(*given),
            "good: one kernel": lambda: good(*given),
        }
    out = torch.empty(size)
    pieces = [(*parts, part) for *parts, part in zip(*(one.split(2**15) for one in (*given, out)),
                                                     strict=True)]  # fmt: skip

    def in_pieces() -> None:
        for x, b, r, to in pieces:
            torch.add(x, b, out=to)
            torch.mul(torch.nn.functional.silu(to, inplace=True), r, out=to)

    return {
        "bad: three passes over 4 Mi numbers": lambda: reference(*given),
        "good: the same 32,768 at a time": in_pieces,
    }


def grade(learner: ModuleType) -> Iterator[LessonMark]:
    """The result and the bytes."""
    given = [torch.randn(_SIZE) for _ in range(3)]
    found, launches = watched(solution(learner), *given)
    yield right(found, reference(*(one.double() for one in given)))
    yield marked("bytes moved", launches.moved_bytes, "at most", 16 * _SIZE)
    yield marked("launches", len(launches.seen), "equal", 1)
