"""Shared memory serves 32 lanes at once, if each of them asks another bank."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numba import cuda, float32

from ridgeline.lessons.shape import Calls, CountedLesson, Figures, marked, right, solution
from ridgeline.lessons.warp_counts import watched
from ridgeline.records.lesson import LessonMark

ORDER = 4
WHY = (
    "Words whose numbers are equal modulo 32 lie in one bank, and a bank gives one word at a time: "
    "a column of a tile of 32 words per row lies in a single bank, one word of padding spreads it "
    "over all of them."
)
ON_A_GPU = "nothing is added: conflicts are counted the same way by a profiler's replays"
TASK = (
    "solve(x) transposes a float32 array of 32 x 32 through a tile in shared memory; reach one "
    "pass per request and at most 4 sectors per store."
)
_TILE = 32


@cuda.jit
def bad(x: Any, out: Any) -> None:
    """Transpose a tile of 32 words per row."""
    tile = cuda.shared.array((32, 32), float32)
    row, column = cuda.threadIdx.y, cuda.threadIdx.x
    tile[row, column] = x[row, column]
    cuda.syncthreads()
    out[row, column] = tile[column, row]


@cuda.jit
def good(x: Any, out: Any) -> None:
    """Transpose a tile of 33 words per row, of which one is padding."""
    tile = cuda.shared.array((32, 33), float32)
    row, column = cuda.threadIdx.y, cuda.threadIdx.x
    tile[row, column] = x[row, column]
    cuda.syncthreads()
    out[row, column] = tile[column, row]


@cuda.jit
def strided(out: Any, stride: Any) -> None:
    """Let a warp read every so-manieth word."""
    words = cuda.shared.array(1024, float32)
    lane = cuda.threadIdx.x
    words[lane * stride] = lane
    out[lane] = words[lane * stride]


STRIDES = (1, 2, 3, 8, 32)


def predict() -> Figures:
    """Lanes that meet in a bank: the greatest common divisor of the stride and 32."""
    found = {
        f"a stride of {stride} words": {"passes of a request": float(math.gcd(stride, 32))}
        for stride in STRIDES
    }
    for name, width in (("bad: a tile of 32 x 32", 32), ("good: a tile of 32 x 33", 33)):
        found[name] = {
            "passes of a load": float(math.gcd(width, 32)),
            "passes of a store": 1.0,
            "barriers": 1.0,
        }
    return found


def observe() -> CountedLesson:
    """Count the passes of strided requests and of both transposes."""
    figures: Figures = {}
    for stride in STRIDES:
        out = np.zeros(32, np.float32)
        _, warps = watched(strided[1, 32], out, stride)
        figures[f"a stride of {stride} words"] = {
            "passes of a request": warps.passes_of_a_request("load")
        }
    x = np.random.default_rng(0).standard_normal((_TILE, _TILE)).astype(np.float32)
    results = []
    for name, kernel in (("bad: a tile of 32 x 32", bad), ("good: a tile of 32 x 33", good)):
        out = np.zeros_like(x)
        _, warps = watched(kernel[1, (_TILE, _TILE)], x, out)
        results.append((torch.from_numpy(out), torch.from_numpy(x.T.copy())))
        figures[name] = {
            "passes of a load": warps.passes_of_a_request("load"),
            "passes of a store": warps.passes_of_a_request("store"),
            "barriers": float(warps.barriers),
        }
    return CountedLesson(figures=figures, results=results)


def calls(device: str) -> Calls:
    """Nothing is timed, for the simulator's time says nothing."""
    return {}


def grade(learner: ModuleType) -> Iterator[LessonMark]:
    """The transpose, its passes and its sectors."""
    x = np.random.default_rng(1).standard_normal((_TILE, _TILE)).astype(np.float32)
    found, warps = watched(solution(learner), x)
    yield right(found, torch.from_numpy(x.T.copy()))
    yield marked("passes of a shared request", warps.passes_of_a_request(), "equal", 1.0)
    for kind in ("load", "store"):
        yield marked(f"sectors of a {kind}", warps.sectors_of_a_request(kind), "at most", 4.0)
    yield marked("races in shared memory", warps.races, "equal", 0)
    yield marked("numbers that threads read", warps.numbers_read, "equal", _TILE * _TILE)
