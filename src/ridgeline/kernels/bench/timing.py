"""Times of one computation done in several ways, on the GPU at hand.

Each time is the median of replays of a CUDA graph on random data (zeros run faster), with the L2
cache overwritten before each; where a graph cannot hold the work, of calls.
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
            errors[way] = f"{type(error).__name__}: {error!s:.120}"
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
    """What a copy of a gibibyte moves, read and write together."""
    source = torch.randn(2**29, **MADE)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source))


def seconds_of(work: Callable[[], object], *, in_a_graph: bool = True) -> float:
    """Median of one replay of a CUDA graph, or of one call, the L2 cache cleared before each."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    timed: Callable[[], object] = work
    if in_a_graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
        timed = graph.replay
    flush = torch.empty(_CACHE_BYTES, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(_ROUNDS):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
        start.record()
        timed()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return median(times)
