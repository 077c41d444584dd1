"""The small measurements that a probe is made of: matmul, bandwidth, dispatch, launch, copies.

Each runs real PyTorch operators and returns the best of several samples, since noise only ever
adds time. Bandwidth buffers follow STREAM's rule (McCalpin: arrays of at least four times the
last cache), in a hurry a weaker one: what three arrays of the cache's size hold is gone from it
when its turn comes again, and finding pages for twelve times a server's cache takes longer than
all the rest of a quick probe.

On a busy machine a short parallel region is at the mercy of the scheduler: when one of its
threads has to wait for a time slice, all of them wait at the barrier, every time. So sizes are
chosen by a pilot on one thread, and rates are taken only from calls that are long against a time
slice.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ridgeline.hardware.ceilings import BUSY_SHARE

MATMUL_KINDS = {
    "cpu": ("fp32", "fp32_medium", "bf16", "fp16", "int8", "fp64"),
    "cuda": ("fp32", "tf32", "bf16", "fp16", "int8", "fp64"),
}
"""Arithmetic to measure, fp32 first: it is what the others are compared with."""

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp32_medium": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
}

PRECISIONS = {"fp32": "highest", "fp32_medium": "medium", "tf32": "high"}
"""What `torch.set_float32_matmul_precision` must say for the float32 kinds."""

SMALL_SIDE = 64
"""Side of a matmul that is all overhead."""
PILOT_SIDE = {"cpu": 256, "cuda": 1024}
LAST_SIDE = 16384
TRAP_RATIO = 0.05
"""Arithmetic this much slower than fp32 has no fast path here: it is not worth more time."""

CHAIN = 100
"""Operators in one dispatch sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much time and memory one probe may take."""

    num_sizes: int
    """Sizes of matrices per kind of arithmetic: the largest that fits, its half, …"""
    retry_seconds: float
    """How long one size is measured again, busy as the CPU may be."""
    matmul_seconds: float
    """For one size of one kind."""
    call_seconds: float
    """No single matmul may be expected to take longer."""
    bandwidth_seconds: float
    """For one pattern at one number of threads."""
    cache_multiple: int
    """Least size of each of the three bandwidth buffers, in last-level caches."""
    dispatch_seconds: float
    sample_seconds: float


FULL = Effort(
    num_sizes=2,
    retry_seconds=0.6,
    matmul_seconds=0.4,
    call_seconds=0.2,
    bandwidth_seconds=0.25,
    cache_multiple=4,  # STREAM's rule
    dispatch_seconds=0.4,
    sample_seconds=0.02,
)
QUICK = Effort(
    num_sizes=1,
    retry_seconds=0.3,
    matmul_seconds=0.12,
    call_seconds=0.08,
    bandwidth_seconds=0.05,
    cache_multiple=1,  # what is not in the cache any more when its turn comes again
    dispatch_seconds=0.1,
    sample_seconds=0.01,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulResult:
    """What was seen of one kind of arithmetic."""

    flops_per_second: float
    """Best sustained rate; 0 when it cannot be done at all."""
    side: int
    """Side of the matrices at which it was seen."""
    pilot_flops_per_second: float
    """Rate of the pilot, for the comparison of kinds."""
    cpu_time_share: float | None
    """CPU time that our threads got over what they asked for; None: not measured on all of them."""
    skipped: str | None
    """Why it was not measured, or only by the pilot."""


def best_seconds(
    call: Callable[[], object],
    *,
    budget_seconds: float,
    sample_seconds: float,
    finish: Callable[[], None],
) -> float:
    """Least mean time of one call: best of the samples, at least two, that fit the budget."""

    def sample(repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        finish()
        return (time.perf_counter() - start) / repeats

    sample(1)
    end = time.perf_counter() + budget_seconds
    best = sample(1)
    # A call that is long enough is a sample by itself; of a shorter one it takes several.
    repeats = math.ceil(sample_seconds / max(best, 1e-9))
    if repeats > 1:
        best = sample(repeats)
    while True:
        best = min(best, sample(repeats))
        if time.perf_counter() >= end:
            return best


def finisher(device: str) -> Callable[[], None]:
    """What waits until the device has done all that was asked of it."""
    finish: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    return finish


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Run operators on `count` threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def float32_precision(kind: str) -> Iterator[None]:
    """Let float32 matmuls use what `kind` stands for within the block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(PRECISIONS.get(kind, before))
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def matmul(
    kind: str, device: str, num_threads: int, effort: Effort, pilot_fp32: float | None
) -> MatmulResult:
    """Best sustained rate of `kind` on square matrices (2 n³ operations each)."""
    pilot = PILOT_SIDE[device]
    rate, best, best_side = 0.0, 0.0, 0
    share: float | None = None
    skipped: str | None = None
    with float32_precision(kind):
        try:
            with threads(1):
                seconds = 2 * effort.sample_seconds
                rate = _matmul_rate(kind, device, pilot, seconds, effort.sample_seconds / 10)
            if pilot_fp32 is not None and rate < TRAP_RATIO * pilot_fp32:
                best, best_side = rate, pilot
                ratio = rate / pilot_fp32
                skipped = f"no fast path here: {ratio:.1%} of fp32 at n={pilot} on one thread"
            else:
                workers = num_threads if device == "cpu" else 1
                for side in _sides(rate * workers, pilot, effort):
                    seen, got = _sustained(kind, device, side, workers, effort)
                    if seen > best:
                        best, best_side = seen, side
                    share = got if share is None or got is None else max(share, got)
        except RuntimeError as error:
            # torch has no kernel for this arithmetic here, or no memory for this size.
            skipped = str(error).partition("\n")[0]
    return MatmulResult(
        flops_per_second=best,
        side=best_side,
        pilot_flops_per_second=rate,
        cpu_time_share=share,
        skipped=skipped,
    )


def small_matmul(kind: str, device: str, effort: Effort) -> float:
    """Seconds of one matmul of `kind` that is too small to need any; on all threads."""
    with float32_precision(kind):
        return best_seconds(
            _matmul_call(kind, device, SMALL_SIDE),
            budget_seconds=effort.dispatch_seconds / 4,
            sample_seconds=effort.sample_seconds / 4,
            finish=finisher(device),
        )


def _sustained(
    kind: str, device: str, side: int, workers: int, effort: Effort
) -> tuple[float, float | None]:
    """Best rate at one size, and the share of the CPU that it got; again while that is poor."""
    best, best_share = 0.0, 0.0
    end = time.perf_counter() + effort.retry_seconds
    while True:
        wall, cpu = time.perf_counter(), time.process_time()
        rate = _matmul_rate(kind, device, side, effort.matmul_seconds, effort.sample_seconds)
        best = max(best, rate)
        if device != "cpu":
            return best, None
        asked = (time.perf_counter() - wall) * workers
        best_share = max(best_share, (time.process_time() - cpu) / asked)
        if best_share >= BUSY_SHARE or time.perf_counter() > end:
            return best, best_share


def _sides(rate: float, smallest: int, effort: Effort) -> list[int]:
    """The largest side whose call fits at `rate`, then its halves."""
    largest = smallest
    while largest < LAST_SIDE and 2.0 * (2 * largest) ** 3 / rate <= effort.call_seconds:
        largest *= 2
    return [max(smallest, largest >> step) for step in range(effort.num_sizes)]


def _matmul_rate(
    kind: str, device: str, side: int, budget_seconds: float, sample_seconds: float
) -> float:
    seconds = best_seconds(
        _matmul_call(kind, device, side),
        budget_seconds=budget_seconds,
        sample_seconds=sample_seconds,
        finish=finisher(device),
    )
    return 2.0 * side**3 / seconds


def _matmul_call(kind: str, device: str, side: int) -> Callable[[], object]:
    """One matmul on random numbers: on zeros, GPUs draw less power and clock higher."""
    generator = torch.Generator().manual_seed(0)
    tile = min(side, 256)
    if kind == "int8":
        left, right = (
            _tiled(torch.randint(-128, 128, (tile, tile), generator=generator), side).to(
                device, DTYPES[kind]
            )
            for _ in range(2)
        )
        return lambda: torch._int_mm(left, right)
    left, right = (
        _tiled(torch.randn(tile, tile, generator=generator), side).to(device, DTYPES[kind])
        for _ in range(2)
    )
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def _tiled(tile: torch.Tensor, side: int) -> torch.Tensor:
    """A square matrix of random numbers at the price of one tile of them."""
    times = -(-side // tile.shape[0])
    return tile.repeat(times, times)[:side, :side].contiguous()


def bandwidth(
    device: str, buffer_bytes: int, thread_counts: list[int], effort: Effort
) -> dict[int, dict[str, float]]:
    """Bytes per second by number of threads and pattern."""
    num = buffer_bytes // 4
    buffers = torch.ones(3 * num, device=device)
    target, first, second = buffers.chunk(3)
    patterns: dict[str, tuple[int, Callable[[], object]]] = {
        "copy": (2, lambda: target.copy_(first)),
        "triad": (3, lambda: torch.add(first, second, alpha=3.0, out=target)),
        "read": (3, lambda: torch.sum(buffers)),
    }
    rates: dict[int, dict[str, float]] = {}
    for count in thread_counts:
        with threads(count):
            rates[count] = {
                name: moved
                * num
                * 4
                / best_seconds(
                    call,
                    budget_seconds=effort.bandwidth_seconds,
                    sample_seconds=effort.sample_seconds,
                    finish=finisher(device),
                )
                for name, (moved, call) in patterns.items()
            }
    return rates


def dispatch(device: str, effort: Effort) -> tuple[float, float, float]:
    """Host seconds per tiny operator: plain, recorded for backward, and in backward.

    Eight elements cost nothing to compute, so that what remains is Python, the dispatcher,
    allocation, and on a GPU the enqueueing of a kernel.
    """
    finish = finisher(device)
    plain, factor = torch.ones(8, device=device), torch.ones(8, device=device)
    leaf = torch.ones(8, device=device, requires_grad=True)

    def chain(value: torch.Tensor) -> torch.Tensor:
        for _ in range(CHAIN):
            value = torch.mul(value, factor)
        return value

    forward = recorded = backward = math.inf
    end = time.perf_counter() + effort.dispatch_seconds
    rounds = 0
    while rounds < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        chain(plain)
        after_plain = time.perf_counter()
        finish()
        before_recorded = time.perf_counter()
        result = chain(leaf)
        after_recorded = time.perf_counter()
        result.backward(torch.ones_like(result))
        after_backward = time.perf_counter()
        finish()
        forward = min(forward, after_plain - start)
        recorded = min(recorded, after_recorded - before_recorded)
        backward = min(backward, after_backward - after_recorded)
        leaf.grad = None
        rounds += 1
    return forward / CHAIN, recorded / CHAIN, backward / CHAIN


def launch(effort: Effort) -> float:
    """Seconds per tiny GPU kernel when many are queued back to back, waiting included."""
    value = torch.ones(8, device="cuda")

    def queue() -> None:
        for _ in range(CHAIN):
            value.mul_(1.0)

    seconds = best_seconds(
        queue,
        budget_seconds=effort.dispatch_seconds,
        sample_seconds=effort.sample_seconds,
        finish=finisher("cuda"),
    )
    return seconds / CHAIN


def copies(buffer_bytes: int, effort: Effort) -> dict[str, float]:
    """Bytes per second between host and GPU, by direction and kind of host memory."""
    on_device = torch.ones(buffer_bytes, dtype=torch.uint8, device="cuda")
    rates = {}
    for kind in ("pinned", "pageable"):
        on_host = torch.ones(buffer_bytes, dtype=torch.uint8, pin_memory=kind == "pinned")
        directions = {
            "host_to_device": (on_device, on_host),
            "device_to_host": (on_host, on_device),
        }
        for direction, (target, source) in directions.items():
            seconds = best_seconds(
                functools.partial(target.copy_, source, non_blocking=True),
                budget_seconds=effort.bandwidth_seconds,
                sample_seconds=effort.sample_seconds,
                finish=finisher("cuda"),
            )
            rates[f"{direction}_{kind}"] = buffer_bytes / seconds
    return rates
