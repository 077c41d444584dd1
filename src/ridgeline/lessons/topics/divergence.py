"""A warp takes every path that one of its lanes takes; a mask saves traffic only by the sector."""

from __future__ import annotations

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numba import cuda
from torch import Tensor

from ridgeline.lessons import triton_counts, warp_counts
from ridgeline.lessons.shape import Calls, CountedLesson, Figures, marked, right, solution
from ridgeline.records.lesson import LessonMark

ORDER = 6
WHY = (
    "Lanes that take another branch wait while it runs; a mask in a load switches lanes off "
    "without a branch; and x[mask] is no mask at all: it counts, writes indices of 8 bytes, waits "
    "for the count and gathers."
)
ON_A_GPU = "x[mask] waits for the GPU to learn its size; both sums are timed there too"
TASK = (
    "solve(x, mask) sums the float32 numbers whose mask is True by a Triton kernel into one "
    "number; move at most 5 bytes per number and 8 per block of 1,024."
)
_SIZE = 4096


@cuda.jit
def by_lane(x: Any, up: Any, down: Any) -> None:
    """Let neighbouring lanes take different branches."""
    t = cuda.threadIdx.x
    if t % 2 == 0:
        up[t] = x[t] + 1.0
    else:
        down[t] = x[t] - 1.0


@cuda.jit
def by_warp(x: Any, up: Any, down: Any) -> None:
    """Let whole warps take different branches."""
    t = cuda.threadIdx.x
    if (t // 32) % 2 == 0:
        up[t] = x[t] + 1.0
    else:
        down[t] = x[t] - 1.0


@triton.jit
def masked_kernel(x: tl.tensor, out: tl.tensor, every: tl.tensor, below: tl.tensor) -> None:
    """Load the lanes that a mask leaves of 32."""
    lanes = tl.arange(0, 32)
    kept = (lanes % every == 0) & (lanes < below)
    tl.store(out + lanes, tl.load(x + lanes, mask=kept, other=0.0))


@triton.jit
def count_kernel(mask: tl.tensor, counts: tl.tensor, BLOCK: tl.constexpr) -> None:
    """How many of a block are kept."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.load(mask + places).to(tl.int32)
    tl.store(counts + tl.program_id(0), tl.sum(kept, 0))


@triton.jit
def index_kernel(
    mask: tl.tensor, starts: tl.tensor, indices: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """Write down the places that are kept."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.load(mask + places).to(tl.int32)
    target = tl.load(starts + tl.program_id(0)) + tl.cumsum(kept, 0) - kept
    tl.store(indices + target, places.to(tl.int64), mask=kept != 0)


@triton.jit
def gather_kernel(
    x: tl.tensor, indices: tl.tensor, out: tl.tensor, kept: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """Fetch what lies at the indices."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < kept
    found = tl.load(x + tl.load(indices + places, mask=inside, other=0), mask=inside)
    tl.store(out + places, found, mask=inside)


@triton.jit
def where_kernel(x: tl.tensor, mask: tl.tensor, out: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Sum a block of x where the mask is set."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.load(mask + places)
    tl.store(out + tl.program_id(0), tl.sum(tl.where(kept != 0, tl.load(x + places), 0.0), 0))


def bad(x: Tensor, mask: Tensor) -> Tensor:
    """Select what x[mask] selects, by the steps that it takes; then it can be summed."""
    blocks = x.numel() // 1024
    counts = torch.zeros(blocks, dtype=torch.int32, device=x.device)
    bits = mask.view(torch.int8)
    count_kernel[(blocks,)](bits, counts, BLOCK=1024)
    starts = (counts.cumsum(0) - counts).to(torch.int32)
    kept = int(counts.sum())  # here a GPU is waited for
    indices = torch.empty(kept, dtype=torch.int64, device=x.device)
    index_kernel[(blocks,)](bits, starts, indices, BLOCK=1024)
    out = x.new_empty(kept)
    gather_kernel[(triton.cdiv(kept, 1024),)](x, indices, out, kept, BLOCK=1024)
    return out


def good(x: Tensor, mask: Tensor) -> Tensor:
    """Sum where the mask is set, in one pass."""
    parts = x.new_empty(x.numel() // 1024)
    where_kernel[(len(parts),)](x, mask.view(torch.int8), parts, BLOCK=1024)
    return parts.sum()


def predict() -> Figures:
    """Paths by counting branches, sectors by counting what is left, bytes step by step."""
    kept, blocks = _SIZE // 2, _SIZE // 1024
    selecting = 2 * _SIZE + 2 * 4 * blocks  # the mask is read twice, counts written, starts read
    selecting += 2 * 8 * kept + 2 * 4 * kept  # indices written and read, numbers read and written
    return {
        "bad: a branch by t % 2": {"paths of a warp": 2.0, "requests": 2.0 * 2 * 4},
        "good: a branch by t // 32 % 2": {"paths of a warp": 1.0, "requests": 2.0 * 4},
        "a mask of every second lane": {"sectors of a load": 4.0},
        "a mask of the first 16 lanes": {"sectors of a load": 2.0},
        "bad: x[mask]": {"bytes moved": float(selecting)},
        "good: where(mask, x, 0), summed": {"bytes moved": float(5 * _SIZE + 4 * blocks)},
    }


def observe() -> CountedLesson:
    """Count paths in the simulator, sectors and bytes in the interpreter."""
    figures: Figures = {}
    x = np.arange(128, dtype=np.float32)
    for name, kernel in (
        ("bad: a branch by t % 2", by_lane),
        ("good: a branch by t // 32 % 2", by_warp),
    ):
        up, down = np.zeros_like(x), np.zeros_like(x)
        _, warps = warp_counts.watched(kernel[1, 128], x, up, down)
        figures[name] = {
            "paths of a warp": float(warps.most_paths),
            "requests": float(len(warps.requests("global"))),
        }
    numbers, out = torch.randn(32), torch.empty(32)
    for name, every, below in (
        ("a mask of every second lane", 2, 32),
        ("a mask of the first 16 lanes", 1, 16),
    ):
        _, launches = triton_counts.watched(masked_kernel[(1,)], numbers, out, every, below)
        figures[name] = {"sectors of a load": launches.sectors_of("load")}
    values, mask = _problem("cpu", _SIZE)
    picked, launches = triton_counts.watched(bad, values, mask)
    figures["bad: x[mask]"] = {"bytes moved": float(launches.moved_bytes)}
    total, launches = triton_counts.watched(good, values, mask)
    figures["good: where(mask, x, 0), summed"] = {"bytes moved": float(launches.moved_bytes)}
    exact = values.double()[mask]
    return CountedLesson(figures=figures, results=[(picked, exact), (total, exact.sum())])


def _problem(device: str, size: int) -> tuple[Tensor, Tensor]:
    """Numbers, and a mask that keeps exactly half of them in no order."""
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.randperm(size)[: size // 2]] = True
    return (torch.rand(size) + 0.5).to(device), mask.to(device)


def calls(device: str) -> Calls:
    """The branches by PyTorch, on 4 Mi numbers."""
    x, mask = _problem(device, 2**22)
    return {
        "bad: x[mask].sum()": lambda: torch.sum(x[mask]),
        "good: where(mask, x, 0).sum()": lambda: torch.where(mask, x, 0.0).sum(),
    }


def grade(learner: ModuleType) -> Iterator[LessonMark]:
    """The sum and the bytes."""
    x, mask = _problem("cpu", _SIZE)
    found, launches = triton_counts.watched(solution(learner), x, mask, selected=mask)
    yield right(torch.as_tensor(found).reshape(()), x.double()[mask].sum())
    wanted = 5 * _SIZE + 8 * (_SIZE // 1024)
    yield marked("bytes moved", launches.moved_bytes, "at most", wanted)
    yield marked("launches", len(launches.seen), "at least", 1)
