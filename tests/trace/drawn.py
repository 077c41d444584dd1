"""Runs of a model with a known law of noise, drawn at random straight into columns."""

from __future__ import annotations

import numpy as np

from ridgeline.trace.columns import (
    Category,
    Floats,
    GpuEvents,
    HostEvents,
    Ints,
    Trace,
    empty_trace,
    filled_table,
)

LAYER = (("gemm", 180.0), ("softmax", 40.0), ("add", 6.0), ("gemm", 90.0), ("gelu", 12.0))
"""Kernels of a layer with their lengths."""


def drawn_run(
    seed: int,
    *,
    layers: int = 120,
    slow: float = 1.0,
    jitter: float = 0.03,
    drift: float = 0.0,
    memory: int = 60,
    stall_share: float = 0.0,
    rank: int | None = None,
) -> Trace:
    """A window of layers, one kernel after the other.

    Every span is off by `jitter`; `drift` is a slow error that the neighbouring spans share and
    that is forgotten after `memory` of them; some gaps are stalls of the host, twenty times as
    long; `slow` stretches everything.
    """
    chance = np.random.default_rng(seed)
    names = tuple(dict.fromkeys(name for name, _ in LAYER))
    count = layers * len(LAYER)
    lengths = np.array([length for _, length in LAYER] * layers) * slow
    wander = _wander(chance, count, memory) * drift
    durations = lengths * np.exp(chance.normal(0, jitter, count) + wander)
    gaps = 4.0 * slow * chance.lognormal(0, 0.4, count)
    gaps[chance.random(count) < stall_share] *= 20
    starts = np.concatenate(([0.0], np.cumsum(durations + gaps)[:-1]))
    numbers = np.array([names.index(name) for name, _ in LAYER] * layers)
    return launched(names, numbers, starts, durations, rank=rank)


def _wander(chance: np.random.Generator, count: int, memory: int) -> Floats:
    """An autoregressive series of unit variance with that correlation length."""
    keep = float(np.exp(-1 / memory))
    series = np.empty(count)
    series[0] = chance.normal()
    steps = chance.normal(0, np.sqrt(1 - keep**2), count)
    for place in range(1, count):
        series[place] = keep * series[place - 1] + steps[place]
    return series


def launched(
    names: tuple[str, ...], numbers: Ints, starts: Floats, durations: Floats, *, rank: int | None
) -> Trace:
    """The trace of kernels, each launched by an operator of its name shortly before."""
    count = len(numbers)
    correlation = np.arange(1, count + 1)
    gpu = {
        "start_us": starts + 50, "duration_us": durations, "name": numbers,
        "kind": np.zeros(count), "device": np.zeros(count), "stream": np.full(count, 7),
        "correlation": correlation, "blocks": np.full(count, 64),
    }  # fmt: skip
    host = {
        "start_us": np.concatenate((starts, starts + 0.5)),
        "duration_us": np.concatenate((np.full(count, 3.0), np.full(count, 1.0))),
        "name": np.concatenate((numbers + len(names), np.full(count, 2 * len(names)))),
        "category": np.repeat([int(Category.OPERATOR), int(Category.RUNTIME)], count),
        "thread": np.zeros(2 * count),
        "correlation": np.concatenate((np.full(count, -1), correlation)),
    }
    trace = empty_trace("drawn")
    tables = {name: getattr(trace, name) for name in ("sync", "memory", "gpu_annotations")}
    return Trace(
        file="drawn",
        rank=rank,
        names=(*names, *(f"aten::{name}" for name in names), "cudaLaunchKernel"),
        threads=((1, 1),),
        gpu=filled_table(GpuEvents, gpu),
        host=filled_table(HostEvents, host),
        **tables,
    )
