"""A sum is a tree: which lanes take part decides whether warps go apart."""

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

ORDER = 5
WHY = (
    "With `t % (2 * s) == 0` every warp keeps a few lanes busy to the end; neighbouring threads "
    "let whole warps stop; and within a warp a shuffle needs neither memory nor a barrier."
)
ON_A_GPU = "nothing is timed: the CUDA C++ twin is the file to time there"
TASK = (
    "solve(x) sums 256 float32 numbers in one block of 256 threads (numba.cuda); reach at most one "
    "barrier and 9 requests to shared memory. cuda.shfl_down_sync(mask, value, delta) is there."
)
_THREADS, _LANES = 256, 32
_STEPS = (1, 2, 4, 8, 16, 32, 64, 128)


@cuda.jit
def modulo(x: Any, out: Any) -> None:
    """Let every 2 s-th thread add."""
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    s = 1
    while s < 256:
        if t % (2 * s) == 0:
            tile[t] += tile[t + s]
        cuda.syncthreads()
        s *= 2
    if t == 0:
        out[0] = tile[0]


@cuda.jit
def interleaved(x: Any, out: Any) -> None:
    """Let the first threads add what lies 2 s apart."""
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    s = 1
    while s < 256:
        if t < 128 // s:
            tile[2 * s * t] += tile[2 * s * t + s]
        cuda.syncthreads()
        s *= 2
    if t == 0:
        out[0] = tile[0]


@cuda.jit
def sequential(x: Any, out: Any) -> None:
    """Let the first threads add the other half."""
    tile = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    s = 128
    while s > 0:
        if t < s:
            tile[t] += tile[t + s]
        cuda.syncthreads()
        s //= 2
    if t == 0:
        out[0] = tile[0]


@cuda.jit
def shuffle(x: Any, out: Any) -> None:
    """Sum each warp in registers, then the eight sums."""
    sums = cuda.shared.array(8, float32)
    t = cuda.threadIdx.x
    value = x[t]
    delta = 16
    while delta > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, delta)
        delta //= 2
    if t % 32 == 0:
        sums[t // 32] = value
    cuda.syncthreads()
    if t < 32:
        value = sums[t] if t < 8 else 0.0
        delta = 4
        while delta > 0:
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, delta)
            delta //= 2
        if t == 0:
            out[0] = value


KERNELS = {
    "bad: modulo": modulo,
    "interleaved": interleaved,
    "sequential": sequential,
    "good: shuffles": shuffle,
}


def predict() -> Figures:
    """Warps with a lane at work, step by step; each adds by two loads and a store."""
    warps = {
        "bad: modulo": [min(8, _THREADS // (2 * s)) for s in _STEPS],
        "interleaved": [-(-(128 // s) // _LANES) for s in _STEPS],
        "sequential": [-(-s // _LANES) for s in _STEPS],
    }
    apart = {
        "bad: modulo": sum(warps["bad: modulo"]),
        "interleaved": sum(128 // s < _LANES for s in _STEPS),
        "sequential": sum(s < _LANES for s in _STEPS),
    }
    conflicts = sum(
        count * (_passes(min(_LANES, 128 // s), 2 * s) - 1)
        for s, count in zip(_STEPS, warps["interleaved"], strict=True)
    )
    found: Figures = {}
    for name, steps in warps.items():
        requests = 3 * sum(steps) + 8 + 1  # the tile is filled by eight warps, read out by one
        found[name] = {
            "barriers": len(_STEPS) + 1.0,
            "requests to shared memory": float(requests),
            "passes over its banks": float(
                requests + (3 * conflicts if name == "interleaved" else 0)
            ),
            "times that a warp goes apart": apart[name] + 1.0,  # and when thread 0 writes
        }
    found["good: shuffles"] = {
        "barriers": 1.0,
        "requests to shared memory": 9.0,
        "passes over its banks": 9.0,
        "times that a warp goes apart": 8.0 + 1.0,
    }
    return found


def _passes(lanes: int, stride: int) -> int:
    """The most lanes that meet in a bank."""
    banks = _LANES // math.gcd(stride, _LANES)
    return -(-lanes // banks)


def observe() -> CountedLesson:
    """Count barriers, requests, passes and paths of the four."""
    x = np.random.default_rng(0).standard_normal(_THREADS).astype(np.float32)
    exact = torch.from_numpy(x).double().sum().reshape(1)
    figures: Figures = {}
    results = []
    for name, kernel in KERNELS.items():
        out = np.zeros(1, np.float32)
        _, warps = watched(kernel[1, _THREADS], x, out)
        figures[name] = {
            "barriers": float(warps.barriers),
            "requests to shared memory": float(len(warps.requests("shared"))),
            "passes over its banks": float(warps.passes()),
            "times that a warp goes apart": float(warps.divergent),
        }
        results.append((torch.from_numpy(out), exact))
    return CountedLesson(figures=figures, results=results)


def calls(device: str) -> Calls:
    """Nothing is timed, for the simulator's time says nothing."""
    return {}


def grade(learner: ModuleType) -> Iterator[LessonMark]:
    """The sum, barriers and requests."""
    x = np.random.default_rng(1).standard_normal(_THREADS).astype(np.float32)
    found, warps = watched(solution(learner), x)
    exact = torch.from_numpy(x).double().sum().reshape(1)
    yield right(torch.as_tensor(found).reshape(1), exact)
    yield marked("barriers", warps.barriers, "at most", 1)
    yield marked("requests to shared memory", len(warps.requests("shared")), "at most", 9)
    yield marked("races in shared memory", warps.races, "equal", 0)
    yield marked("numbers that threads read", warps.numbers_read, "equal", _THREADS)
