"""Times of one computation done in several ways, on the GPU at hand.

Each time is the median of replays of a CUDA graph on random data (zeros run faster). Before each,
other data is read through the L2 cache: written, it would have to go back to memory while the work
runs. Where a graph cannot hold the work, calls follow each other, so that the host runs ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from ridgeline.errors import InputError
from ridgeline.records.kernel_bench import KernelBench, KernelTiming

MADE: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
_CACHE_BYTES = 2**28
"""More than any GPU's L2 cache."""
_ROUNDS = 20
_CALLS = 4
"""So many follow each other where there is no graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One computation of ours and of others, by name."""

    name: str
    ways: Mapping[str, Callable[[], object]]
    moved_bytes: int = 0
    """Bytes that must be read or written once; 0 where arithmetic is counted."""
    flops: int = 0
    in_a_graph: bool = True
    goals: Mapping[str, float] = field(default_factory=dict)
    """Another way, or `copy` → the least that ours should be of its rate."""


def measure(
    rows: Iterator[BenchRow], words: tuple[str, ...], on_row: Callable[[str], None]
) -> KernelBench:
    """Time every row whose name has one of the words (none: every row).

    Raises:
        InputError: There is no GPU.
    """
    if not torch.cuda.is_available():
        raise InputError(
            "kernels bench times Triton kernels, and torch sees no GPU here; without one,"
            " `ridgeline kernels check` judges them"
        )
    copied = copy_bytes_per_second()
    found: list[KernelTiming] = []
    # By default compiled backwards write into what their forward kept, so they run but once.
    with torch._functorch.config.patch(donated_buffer=False):
        for row in rows:
            if words and not any(word in row.name for word in words):
                continue
            on_row(row.name)
            found += _timings(row, copied)
            torch.cuda.empty_cache()
    return KernelBench(
        device=torch.cuda.get_device_name(),
        torch=torch.__version__,
        copy_bytes_per_second=copied,
        timings=found,
    )


def _timings(row: BenchRow, copied: float) -> list[KernelTiming]:
    seconds, errors = {}, {}
    for way, work in row.ways.items():
        try:
            seconds[way] = seconds_of(work, in_a_graph=row.in_a_graph)
        except Exception as error:  # a way that fails is told, and the others are timed
            told = " ".join(str(error).split())
            errors[way] = f"{type(error).__name__}: {told:.120}"
    ratios = {}
    if "ours" in seconds:
        for other in row.goals:
            if other in seconds:
                ratios[other] = seconds[other] / seconds["ours"]
            elif other == "copy" and row.moved_bytes:
                ratios[other] = row.moved_bytes / seconds["ours"] / copied
    return [
        KernelTiming(
            kernel=row.name,
            way=way,
            seconds=seconds.get(way),
            bytes_per_second=row.moved_bytes / seconds[way] if way in seconds else None,
            flops_per_second=row.flops / seconds[way] if way in seconds else None,
            ratios=ratios if way == "ours" else {},
            goals=dict(row.goals) if way == "ours" else {},
            error=errors.get(way, ""),
        )
        for way in row.ways
    ]


def copy_bytes_per_second() -> float:
    """What a copy of a gibibyte moves, read and write together: the driver's or a kernel's."""
    source = torch.randn(2**29, **MADE)
    target = torch.empty_like(source)
    ways: tuple[Callable[[], object], ...] = (
        lambda: target.copy_(source),
        lambda: torch.neg(source, out=target),
    )
    return 2 * source.nbytes / min(map(seconds_of, ways))


def seconds_of(work: Callable[[], object], *, in_a_graph: bool = True) -> float:
    """Median of one replay of a CUDA graph, or of one of several calls, from a cold L2 cache."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    timed, count = work, _CALLS
    if in_a_graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
        timed, count = graph.replay, 1
    other = torch.zeros(_CACHE_BYTES // 4, device="cuda")
    times = []
    for _ in range(_ROUNDS):
        torch.amax(other)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
        start.record()
        for _ in range(count):
            timed()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / count)
    return median(times)
