"""Bytes in flight hide latency, whoever holds them: a kernel can be faster with fewer warps."""

from __future__ import annotations

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)
import heapq
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import msgspec
import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.cost.occupancy import occupancy
from ridgeline.hardware import device as device_facts
from ridgeline.hardware.processors import processor
from ridgeline.kernels.check.conduct import run_part
from ridgeline.kernels.check.judging import launch_record
from ridgeline.lessons.shape import Calls, CountedLesson, Figures, marked, right, solution
from ridgeline.lessons.triton_counts import Launches, watched
from ridgeline.records.kernel_check import CompiledKernel
from ridgeline.records.lesson import LessonMark, LessonTable

ORDER = 8
WHY = (
    "By Little's law a multiprocessor needs latency x bandwidth bytes under way; 64 warps with one "
    "load of 4 bytes a lane have 8 KiB, 24 warps with sixteen loads of 16 bytes have 192 KiB, so "
    "the fuller kernel is the slower one."
)
ON_A_GPU = "both copies are timed on 64 Mi numbers"
TASK = (
    "solve(x) copies float32 numbers (a multiple of 8,192) by a Triton kernel; compiled for sm_90 "
    "have at least 64 bytes under way for each thread, in loads of 128 bits, without a spill."
)
_TARGET, _DEVICE = "sm_90", "h200"
_LATENCY_CLOCKS = 480
"""The latency of HBM without load: arXiv 2402.13499, table of latencies, rounded."""
_CLOCKS_PER_SECOND = 1.755e9
_MULTIPROCESSORS = 132
_WARPS = 4


@triton.jit
def copy_kernel(x: tl.tensor, out: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Copy one block of numbers."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + places, tl.load(x + places))


def copied(x: Tensor, a_thread: int) -> Tensor:
    """A copy with so many numbers for each thread."""
    out = torch.empty_like(x)
    block = a_thread * 32 * _WARPS
    copy_kernel[(x.numel() // block,)](x, out, BLOCK=block, num_warps=_WARPS)
    return out


KERNELS = {"bad: 1 number a thread": 1, "good: 64 numbers a thread": 64}


def predict() -> Figures:
    """Loads of 16 bytes where a thread has four numbers or more; rates by Little's law."""
    found: Figures = {}
    for name, numbers in KERNELS.items():
        wide = numbers // 4
        found[name] = {
            "loads of 128 bits": float(wide),
            "loads of a thread": float(wide or 1),
            "bytes under way for a thread": 4.0 * numbers,
        }
    for warps, a_lane in ((64, 4), (24, 4), (24, 64)):
        inflight = warps * 32 * a_lane
        found[f"{warps} warps, {a_lane} bytes a lane"] = {
            "share of the bandwidth": round(min(1.0, inflight / _needed_bytes()), 2)
        }
    return found


def _bytes_per_clock() -> float:
    """HBM's rate, for one multiprocessor."""
    bandwidth = device_facts(_DEVICE).memory.bandwidth_bytes_per_second
    return bandwidth / _MULTIPROCESSORS / _CLOCKS_PER_SECOND


def _needed_bytes() -> float:
    """Bytes that must be under way to keep memory busy."""
    return _bytes_per_clock() * _LATENCY_CLOCKS


def compiled(launches: Launches, file: Path) -> CompiledKernel:
    """The machine code of the first launch of a file's kernels."""
    record = launch_record(launches.seen[0])
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "launches.json", Path(folder) / "answer.json"
        given.write_bytes(msgspec.json.encode([record]))
        run_part(file, "compiled", [str(file), str(given), str(answer), _TARGET])
        (found,) = msgspec.json.decode(answer.read_bytes(), type=list[CompiledKernel])
    return found


def observe() -> CountedLesson:
    """Compile both for a GPU that need not be there, and run warps through a memory."""
    x = torch.randn(2 * 64 * 32 * _WARPS)
    figures: Figures = {}
    results, rows = [], []
    for name, numbers in KERNELS.items():
        out, launches = watched(copied, x, numbers)
        results.append((out, x.double()))
        code = compiled(launches, Path(__file__))
        wide, every = (code.instructions.get(one, 0) for one in ("LDG.128", "LDG"))
        figures[name] = {
            "loads of 128 bits": float(wide),
            "loads of a thread": float(every),
            "bytes under way for a thread": 16.0 * wide + 4.0 * (every - wide),
        }
        rows.append(_row(name, code, figures[name]["bytes under way for a thread"]))
    for warps, a_lane in ((64, 4), (24, 4), (24, 64)):
        figures[f"{warps} warps, {a_lane} bytes a lane"] = {
            "share of the bandwidth": round(_simulated_share(warps, a_lane * 32), 2)
        }
    heads = ["kernel", "registers", "warps held", "occupancy", "bytes under way"]
    title = f"Compiled for {_TARGET}; at least {_needed_bytes():,.0f} bytes keep an H200 busy"
    return CountedLesson(
        figures=figures, results=results, tables=[LessonTable(title=title, heads=heads, rows=rows)]
    )


def _row(name: str, code: CompiledKernel, bytes_of_a_thread: float) -> list[str]:
    fits = occupancy(
        processor(_TARGET),
        threads=code.threads,
        registers=code.registers,
        shared_bytes=code.shared_bytes,
    )
    inflight = fits.warps * 32 * bytes_of_a_thread
    share = f"{fits.occupancy:.0%}"
    return [name, str(code.registers), str(fits.warps), share, f"{inflight:,.0f}"]


def _simulated_share(warps: int, request_bytes: float) -> float:
    """The rate that warps reach which load, wait for it and load again, of the whole rate.

    The memory serves one request after the other; each warp has its answer one latency after that
    began, or when it is served, whichever is later.
    """
    service = request_bytes / _bytes_per_clock()
    ready = [0.0] * warps
    free, served, begin, rounds = 0.0, 0, 0.0, 40
    while served < rounds * warps:
        asked = heapq.heappop(ready)
        start = max(asked, free)
        free = start + service
        heapq.heappush(ready, start + max(service, _LATENCY_CLOCKS))
        served += 1
        if served == rounds * warps // 2:
            begin = start
    moved = (rounds * warps - rounds * warps // 2) * request_bytes
    return moved / (start - begin) / _bytes_per_clock()


def calls(device: str) -> Calls:
    """Both on a GPU."""
    if device == "cpu":
        return {}
    x = torch.randn(2**26, device=device)
    return {name: partial(copied, x, numbers) for name, numbers in KERNELS.items()}


def grade(learner: ModuleType) -> Iterator[LessonMark]:
    """The copy, and what the compiler makes of it."""
    x = torch.randn(16384)
    found, launches = watched(solution(learner), x)
    yield right(found, x.double())
    if not launches.seen:
        yield marked("launches", 0, "at least", 1)
        return
    code = compiled(launches, Path(learner.__file__ or ""))
    wide = code.instructions.get("LDG.128", 0)
    yield marked("bytes under way for a thread", 16.0 * wide, "at least", 64)
    yield marked("loads narrower than 128 bits", code.instructions.get("LDG", 0) - wide, "equal", 0)
    yield marked("spills", code.spill_instructions, "equal", 0)
