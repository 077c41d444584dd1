"""Lanes that lie side by side should ask for numbers that lie side by side."""

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

ORDER = 3
WHY = (
    "Memory moves in sectors of 32 bytes: 32 lanes that read neighbouring float32 numbers need 4 "
    "of them, 32 lanes that read down a column need 32, of which seven eighths go unused."
)
ON_A_GPU = "both column sums are timed on 4,096 x 4,096 numbers"
TASK = (
    "solve(x) sums each column of a float32 matrix of any size by a Triton kernel; reach at most "
    "4 sectors for a load."
)
STRIDES = (1, 2, 4, 8, 16, 32)
_ROWS, _COLUMNS = 64, 96


@triton.jit
def strided_kernel(x: tl.tensor, out: tl.tensor, stride: tl.tensor) -> None:
    """Let one warp read every so-manieth number."""
    lanes = tl.arange(0, 32)
    tl.store(out + lanes, tl.load(x + lanes * stride))


@triton.jit
def down_kernel(
    x: tl.tensor, out: tl.tensor, rows: tl.tensor, columns: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """Sum one column, its rows on lanes."""
    column = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, rows, BLOCK):
        row = first + tl.arange(0, BLOCK)
        total += tl.load(x + row * columns + column, mask=row < rows, other=0.0)
    tl.store(out + column, tl.sum(total, 0))


@triton.jit
def across_kernel(
    x: tl.tensor, out: tl.tensor, rows: tl.tensor, columns: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """Sum BLOCK columns, which lie on lanes, row by row."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(rows):
        total += tl.load(x + row * columns + column, mask=inside, other=0.0)
    tl.store(out + column, total, mask=inside)


def bad(x: Tensor) -> Tensor:
    """Put the rows of one column on lanes."""
    out = x.new_empty(x.shape[1])
    down_kernel[(x.shape[1],)](x, out, *x.shape, BLOCK=32, num_warps=1)
    return out


def good(x: Tensor) -> Tensor:
    """Put columns on lanes."""
    out = x.new_empty(x.shape[1])
    across_kernel[(triton.cdiv(x.shape[1], 32),)](x, out, *x.shape, BLOCK=32, num_warps=1)
    return out


def predict() -> Figures:
    """The sectors that the span of 32 lanes covers, 4 bytes each and `stride` apart."""
    found = {}
    for stride in STRIDES:
        sectors = min(32.0, 4.0 * stride)
        found[f"a stride of {stride}"] = {
            "sectors of a load": sectors,
            "share of them used": 32 * 4 / (32 * sectors),
        }
    found["bad: lanes down a column"] = {"sectors of a load": 32.0}
    found["good: lanes along a row"] = {"sectors of a load": 4.0}
    return found


def observe() -> CountedLesson:
    """Count sectors of strided loads and of both column sums."""
    figures: Figures = {}
    for stride in STRIDES:
        x, out = torch.randn(32 * stride), torch.empty(32)
        _, launches = watched(strided_kernel[(1,)], x, out, stride)
        sectors = launches.sectors_of("load")
        figures[f"a stride of {stride}"] = {
            "sectors of a load": sectors,
            "share of them used": 32 * 4 / (32 * sectors),
        }
    x = torch.randn(_ROWS, _COLUMNS)
    results = []
    for name, kernel in (("bad: lanes down a column", bad), ("good: lanes along a row", good)):
        out, launches = watched(kernel, x)
        figures[name] = {"sectors of a load": launches.sectors_of("load")}
        results.append((out, x.double().sum(0)))
    return CountedLesson(figures=figures, results=results)


def calls(device: str) -> Calls:
    """Both column sums on a GPU."""
    if device == "cpu":
        return {}
    x = torch.randn(4096, 4096, device=device)
    return {"bad: lanes down a column": lambda: bad(x), "good: lanes along a row": lambda: good(x)}


def grade(learner: ModuleType) -> Iterator[LessonMark]:
    """The sums, and the sectors of loads."""
    x = torch.randn(48, 96)
    found, launches = watched(solution(learner), x)
    yield right(found, x.double().sum(0))
    yield marked("sectors of a load", launches.sectors_of("load"), "at most", 4)
    yield marked("bytes loaded", launches.loaded_bytes, "at most", x.numel() * 4)
    yield marked("launches", len(launches.seen), "at least", 1)
    odd = torch.randn(37, 90)
    yield right(solution(learner)(odd), odd.double().sum(0), what="relative error of 37 x 90")
