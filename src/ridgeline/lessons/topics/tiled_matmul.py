"""A tile is read once and used many times: that is how a matmul climbs the roofline."""

from __future__ import annotations

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numba import cuda, float32
from torch import Tensor

from ridgeline.cost.roofline import attainable_flops_per_second
from ridgeline.hardware import device as device_facts
from ridgeline.lessons import triton_counts, warp_counts
from ridgeline.lessons.shape import Calls, CountedLesson, Figures, marked, right, solution
from ridgeline.records.lesson import LessonMark, LessonTable

ORDER = 7
WHY = (
    "A tile of T x T needs 2 T numbers for T * T products, so traffic falls as 1 / T until "
    "arithmetic is the limit; rows whose length is no multiple of 16 bytes straddle sectors and "
    "cannot be read 128 bits at a time."
)
ON_A_GPU = "both tiles, and 4,096 beside 4,097 columns, are timed in bfloat16"
TASK = (
    "solve(a, b) multiplies two float32 matrices of 64 x 64 by a Triton kernel with tl.dot; load "
    "at most 65,536 bytes (tiles of 32 x 32)."
)
_SIZE = 64
TILES = (16, 32, 64)


@cuda.jit
def untiled(a: Any, b: Any, out: Any) -> None:
    """Let each thread read its own row and column."""
    row = cuda.blockIdx.y * 16 + cuda.threadIdx.y
    column = cuda.blockIdx.x * 16 + cuda.threadIdx.x
    total = 0.0
    for k in range(32):
        total += a[row, k] * b[k, column]
    out[row, column] = total


@cuda.jit
def in_shared_memory(a: Any, b: Any, out: Any) -> None:
    """Let the threads of a block fetch a tile of each operand together."""
    left = cuda.shared.array((16, 16), float32)
    right_tile = cuda.shared.array((16, 16), float32)
    y, x = cuda.threadIdx.y, cuda.threadIdx.x
    row, column = cuda.blockIdx.y * 16 + y, cuda.blockIdx.x * 16 + x
    total = 0.0
    for first in range(0, 32, 16):
        left[y, x] = a[row, first + x]
        right_tile[y, x] = b[first + y, column]
        cuda.syncthreads()
        for k in range(16):
            total += left[y, k] * right_tile[k, x]
        cuda.syncthreads()
    out[row, column] = total


@triton.jit
def matmul_kernel(
    a: tl.tensor,
    b: tl.tensor,
    out: tl.tensor,
    columns: tl.tensor,
    depth: tl.tensor,
    stride: tl.tensor,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """One tile of the product; `stride` lies between rows of both operands."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), tl.float32)
    for first in range(0, depth, DEPTH):
        along = first + tl.arange(0, DEPTH)
        left = tl.load(a + row[:, None] * stride + along[None, :])
        right_tile = tl.load(b + along[:, None] * stride + column[None, :])
        total += tl.dot(left, right_tile, input_precision="ieee")
    place = out + row[:, None] * columns + column[None, :]
    tl.store(place, total.to(out.dtype.element_ty))


def product(a: Tensor, b: Tensor, tile: int) -> Tensor:
    """The product in tiles; both have rows that lie equally far apart."""
    rows, depth = a.shape
    columns = b.shape[1]
    out = torch.empty(rows, columns, dtype=a.dtype, device=a.device)
    matmul_kernel[(rows // tile, columns // tile)](
        a, b, out, columns, depth, a.stride(0), TILE=tile, DEPTH=min(tile, 32), num_warps=4
    )
    return out


def _in_rows_of(width: int, device: str = "cpu", size: int = _SIZE) -> Tensor:
    """A square matrix in bfloat16 whose rows lie `width` numbers apart."""
    return torch.randn(size, width, device=device).bfloat16()[:, :size]


def predict() -> Figures:
    """Each operand is read once per tile across; rows that begin inside of a sector need one more.

    A row of 32 numbers of two bytes fills 2 sectors where it begins at one: of rows that lie 130
    bytes apart, every sixteenth.
    """
    found: Figures = {
        "bad: no tile (32 x 32)": {"numbers loaded": 2.0 * 32**3},
        "good: tiles of 16 in shared memory": {"numbers loaded": 2.0 * 32**3 / 16},
    }
    for tile in TILES:
        loaded = 2 * _SIZE**3 / tile * 4
        found[f"tiles of {tile} (64 x 64)"] = {
            "bytes loaded": loaded,
            "FLOPs per byte": 2 * _SIZE**3 / (loaded + _SIZE**2 * 4),
        }
    found["good: rows of 64 in bfloat16"] = {"sectors of a load": 2.0}
    found["bad: rows of 65 in bfloat16"] = {"sectors of a load": (1 * 2 + 15 * 3) / 16}
    return found


def observe() -> CountedLesson:
    """Count loads thread by thread, bytes tile by tile, sectors at both row lengths."""
    figures: Figures = {}
    results = []
    draw = np.random.default_rng(0)
    small = [draw.standard_normal((32, 32)).astype(np.float32) for _ in range(2)]
    exact = torch.from_numpy(small[0]).double() @ torch.from_numpy(small[1]).double()
    for name, kernel in (
        ("bad: no tile (32 x 32)", untiled),
        ("good: tiles of 16 in shared memory", in_shared_memory),
    ):
        out = np.zeros((32, 32), np.float32)
        _, warps = warp_counts.watched(kernel[(2, 2), (16, 16)], *small, out)
        loads = sum(one.space == "global" and one.kind == "load" for one in warps.touches)
        figures[name] = {"numbers loaded": float(loads)}
        results.append((torch.from_numpy(out), exact))
    a, b = torch.randn(_SIZE, _SIZE), torch.randn(_SIZE, _SIZE)
    for tile in TILES:
        out, launches = triton_counts.watched(product, a, b, tile)
        figures[f"tiles of {tile} (64 x 64)"] = {
            "bytes loaded": float(launches.loaded_bytes),
            "FLOPs per byte": 2 * _SIZE**3 / launches.moved_bytes,
        }
        results.append((out, a.double() @ b.double()))
    for name, width in (
        ("good: rows of 64 in bfloat16", 64),
        ("bad: rows of 65 in bfloat16", 65),
    ):
        x = _in_rows_of(width)
        _, launches = triton_counts.watched(product, x, x, 32)
        figures[name] = {"sectors of a load": launches.sectors_of("load")}
    return CountedLesson(figures=figures, results=results, tables=[_climb()])


def _climb() -> LessonTable:
    """What an H100 can reach with each tile, if every tile comes from memory."""
    h100 = device_facts("h100")
    peak, bandwidth = h100.peak("bf16"), h100.memory.bandwidth_bytes_per_second
    rows = []
    for tile in (1, 16, 64, 128, 256):
        intensity = 2 * tile**3 / (2 * tile**2 * 2)
        reached = attainable_flops_per_second(intensity, peak, bandwidth)
        rows.append(
            [str(tile), f"{intensity:g}", f"{reached / 1e12:,.1f} TFLOP/s", f"{reached / peak:.1%}"]
        )
    return LessonTable(
        title=f"The roof over a tile in bfloat16 on {h100.name}, without its L2",
        heads=["tile", "FLOPs per byte", "attainable", "of the peak"],
        rows=rows,
    )


def calls(device: str) -> Calls:
    """Tiles of 16 and 64, then aligned and unaligned rows, on a GPU."""
    if device == "cpu":
        return {}
    aligned, odd = (_in_rows_of(width, device, 4096) for width in (4096, 4097))
    return {
        "bad: tiles of 16": lambda: product(aligned, aligned, 16),
        "good: tiles of 64": lambda: product(aligned, aligned, 64),
        "bad: tiles of 64, rows of 4,097": lambda: product(odd, odd, 64),
    }


def grade(learner: ModuleType) -> Iterator[LessonMark]:
    """The product and the bytes."""
    a, b = torch.randn(_SIZE, _SIZE), torch.randn(_SIZE, _SIZE)
    found, launches = triton_counts.watched(solution(learner), a, b)
    yield right(found, a.double() @ b.double(), 1e-4)
    yield marked("bytes loaded", launches.loaded_bytes, "at most", 2 * _SIZE**3 / 32 * 4)
    yield marked("launches", len(launches.seen), "at least", 1)
