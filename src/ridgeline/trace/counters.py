"""A trace in equal slices of time: how busy the GPU, how deep its queues, how full its memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import ABSENT, Floats, Trace
from ridgeline.trace.intervals import covered, union
from ridgeline.trace.kernel_classes import is_communication
from ridgeline.trace.launches import launch_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Values per slice; `edges_us` has one more."""

    edges_us: Floats
    busy: Floats
    """Share of the slice, 0 … 1."""
    communication: Floats
    queue_depth: Floats
    """Launched and not yet started, at the start of the slice; a graph launch is one entry."""
    memory_bytes: Floats | None
    """Allocated on GPUs, as last noted before the slice's end; None without memory events."""


def counters(trace: Trace, slices: int) -> Counters:
    """The counters between the first event and the last."""
    start, end = span_us(trace)
    edges = np.linspace(start, max(end, start + 1e-3), slices + 1)
    gpu = trace.gpu
    width = edges[1:] - edges[:-1]
    talks = is_communication(trace)
    busy = covered(union(gpu.start_us, gpu.end_us), edges[:-1], edges[1:]) / width
    talking = covered(union(gpu.start_us[talks], gpu.end_us[talks]), edges[:-1], edges[1:]) / width
    return Counters(
        edges_us=edges,
        busy=busy,
        communication=talking,
        queue_depth=_depth(trace, edges[:-1]),
        memory_bytes=_memory(trace, edges[1:]),
    )


def span_us(trace: Trace) -> tuple[float, float]:
    """First start and last end of anything in the trace."""
    starts, ends = [], []
    for table in (trace.gpu, trace.host):
        if len(table):
            starts.append(float(table.start_us.min()))
            ends.append(float(table.end_us.max()))
    return (min(starts), max(ends)) if starts else (0.0, 0.0)


def _depth(trace: Trace, moments: Floats) -> Floats:
    rows = launch_rows(trace)
    known = np.flatnonzero(rows != ABSENT)
    calls, first = np.unique(rows[known], return_index=True)
    launched = np.sort(trace.host.start_us[calls])
    started = np.sort(trace.gpu.start_us[known[first]])
    depth = np.searchsorted(launched, moments, "right") - np.searchsorted(started, moments, "right")
    found: Floats = np.maximum(depth, 0).astype(float)
    return found


def _memory(trace: Trace, moments: Floats) -> Floats | None:
    memory = trace.memory
    rows = np.flatnonzero((memory.device_type != 0) & (memory.allocated_bytes != ABSENT))
    if not len(rows):
        return None
    rows = rows[np.argsort(memory.time_us[rows], kind="stable")]
    at = np.searchsorted(memory.time_us[rows], moments, "right") - 1
    values: Floats = memory.allocated_bytes[rows][np.maximum(at, 0)].astype(float)
    return values
