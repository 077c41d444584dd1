"""A grid covers the work, and what it covers beyond that is idle."""

from __future__ import annotations

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)
import heapq
from collections.abc import Iterator
from types import ModuleType

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.lessons.shape import Calls, CountedLesson, Figures, marked, right, solution
from ridgeline.lessons.triton_counts import watched
from ridgeline.records.lesson import LessonMark

ORDER = 1
WHY = (
    "Blocks are handed out whole: a grid must be rounded up, the mask switches off what lies "
    "beyond the end, and one block more than fits at once costs a second wave."
)
ON_A_GPU = "both block sizes are timed on 16 Mi numbers"
TASK = (
    "solve(x, y) adds two vectors of any length by a Triton kernel; reach the right sum for 1,100 "
    "and 1,000 numbers, with at most 64 idle lanes."
)
_SIZE = 1100
_PROCESSORS = 132


@triton.jit
def add_kernel(
    x: tl.tensor, y: tl.tensor, out: tl.tensor, size: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """Add one block of numbers."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    total = tl.load(x + places, mask=inside) + tl.load(y + places, mask=inside)
    tl.store(out + places, total, mask=inside)


def bad(x: Tensor, y: Tensor) -> Tensor:
    """Take blocks that are far larger than what is left for the last one."""
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024, num_warps=4)
    return out


def wrong(x: Tensor, y: Tensor) -> Tensor:
    """Round the grid down."""
    out = torch.zeros_like(x)
    add_kernel[(x.numel() // 128,)](x, y, out, x.numel(), BLOCK=128, num_warps=4)
    return out


def good(x: Tensor, y: Tensor) -> Tensor:
    """Take small blocks, and as many as the length needs."""
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 128),)](x, y, out, x.numel(), BLOCK=128, num_warps=4)
    return out


KERNELS = {
    "wrong: size // 128 blocks": (wrong, 128, _SIZE // 128),
    "bad: blocks of 1,024": (bad, 1024, -(-_SIZE // 1024)),
    "good: blocks of 128": (good, 128, -(-_SIZE // 128)),
}
WAVES = (132, 133, 264)


def predict() -> Figures:
    """Blocks and lanes by rounding; waves are blocks over processors, rounded up."""
    found = {}
    for name, (_, block, blocks) in KERNELS.items():
        covered = min(blocks * block, _SIZE)
        found[name] = {
            "blocks": float(blocks),
            "idle lanes": float(blocks * block - covered),
            "numbers left out": float(_SIZE - covered),
        }
    for blocks in WAVES:
        found[f"{blocks} blocks, one a processor"] = {
            f"waves over {_PROCESSORS}": float(-(-blocks // _PROCESSORS))
        }
    return found


def observe() -> CountedLesson:
    """Run each grid; hand blocks to free processors one by one."""
    x, y = torch.rand(_SIZE) + 1, torch.rand(_SIZE) + 1
    figures: Figures = {}
    results = []
    for name, (kernel, _, _) in KERNELS.items():
        out, launches = watched(kernel, x, y)
        figures[name] = {
            "blocks": float(launches.programs),
            "idle lanes": float(launches.idle_lanes),
            "numbers left out": float((out == 0).sum()),
        }
        if kernel is not wrong:
            results.append((out, x.double() + y.double()))
    for blocks in WAVES:
        figures[f"{blocks} blocks, one a processor"] = {
            f"waves over {_PROCESSORS}": _finished(blocks)
        }
    return CountedLesson(figures=figures, results=results)


def _finished(blocks: int) -> float:
    """When the last of blocks that take 1 each is done, if each goes to who is free first."""
    free = [0.0] * _PROCESSORS
    last = 0.0
    for _ in range(blocks):
        last = heapq.heappop(free) + 1.0
        heapq.heappush(free, last)
    return last


def calls(device: str) -> Calls:
    """Both on a GPU."""
    if device == "cpu":
        return {}
    x, y = (torch.rand(2**24, device=device) for _ in range(2))
    return {"bad: blocks of 1,024": lambda: bad(x, y), "good: blocks of 128": lambda: good(x, y)}


def grade(learner: ModuleType) -> Iterator[LessonMark]:
    """The sums of two lengths, and idle lanes."""
    for size in (_SIZE, 1000):
        x, y = torch.rand(size), torch.rand(size)
        found, launches = watched(solution(learner), x, y)
        yield right(found, x.double() + y.double())
        yield marked(f"idle lanes of {size:,} numbers", launches.idle_lanes, "at most", 64)
        yield marked("launches", len(launches.seen), "at least", 1)
