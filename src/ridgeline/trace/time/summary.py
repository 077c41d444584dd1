"""Where one rank's window went, busy, idle and why, compute, communication: `summarize(trace)`.

Definitions: GPU work is told by category. Busy is the union of all of it and idle what is left of
the window; compute the union of kernels that do not communicate; communication exposed is what
compute does not cover. The waits are those of `idle.py`, a cause per gap as other tools have it;
`idle_by` cuts gaps where launches returned (`idle_causes.py`), as the verdict does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ridgeline.trace.columns import Kind, Trace
from ridgeline.trace.intervals import intersection, measure
from ridgeline.trace.kernel_names import is_communication
from ridgeline.trace.profiler_steps import profiler_steps, step_window
from ridgeline.trace.roofline.operator_flops import executed_flops
from ridgeline.trace.sorting import distinct
from ridgeline.trace.time.idle_causes import IDLE_PARTS, idle_causes
from ridgeline.trace.windows import (
    RankRecord,
    View,
    host_window,
    views,
)

_RECORD = "record with ProfilerActivity.CUDA"


def no_gpu_event(trace: Trace) -> str:
    """Say that nothing of a GPU is in the trace, and how its profiler would have recorded it."""
    how = trace.record_gpu or _RECORD
    return f"no GPU event in the trace: nothing ran on a GPU, or it was not recorded; {how}"


class RankSummary(RankRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the window of one GPU of one rank went."""

    device: int | None
    """GPU, as the trace numbers it; None when no GPU did anything."""
    device_name: str | None
    window: str
    """`trace` (first GPU start to last GPU end), `steps` (whole profiler steps) or `span` (the work
    of host and GPU together)."""
    window_us: float
    gpu_events: int
    busy_us: float
    idle_us: float
    compute_us: float
    communication_us: float
    communication_exposed_us: float
    overlap_us: float
    overlap_ratio: float | None
    """Share of communication that compute covers; None without communication."""
    copy_us: float
    copy_exposed_us: float
    """Copies and fills while no kernel ran."""
    host_wait_us: float
    dependency_wait_us: float
    kernel_wait_us: float
    unknown_wait_us: float
    idle_by: dict[str, float]
    """Idle time by whose it is, in µs, cut where launches returned (`idle_causes.py`): of the host
    `loader`, `synchronise`, `start_up`, `allocator`, `copy`, `runtime`, `operator`, `python` and
    `untraced`; of the device `dependency`, `stall` and `launch_gap`; or `unknown`."""
    flops: float | None
    """The FLOPs of matmuls, convolutions and attention that were started in the window,
    recomputation included; None when the trace was loaded without details, has no shapes, or
    convolves without saying how (torch before 2.1)."""
    flops_utilization: float | None
    """Over the window and the device's dense 16-bit peak, where the catalogue knows the device: MFU
    where nothing is recomputed."""
    steps: int
    """Profiler steps in the trace."""
    step_us: float | None
    """Mean length of the whole steps on the host."""
    warnings: list[str]


def summarize(trace: Trace, window: str = "trace") -> list[RankSummary]:
    """One summary per GPU that worked; one without figures for a trace that has no GPU work."""
    found = [summarize_view(view) for view in views(trace, window)]
    return found or [_without_gpu(trace, window)]


def summarize_view(view: View) -> RankSummary:
    """The summary of one GPU within one window."""
    trace = view.trace
    kernels = trace.gpu.kind == Kind.KERNEL
    talks = is_communication(trace)
    busy_us = measure(view.set_of())
    compute = view.set_of(kernels & ~talks)
    communication = view.set_of(talks)
    copies = view.set_of(~kernels)
    overlap_us = measure(intersection(compute, communication))
    communication_us = measure(communication)
    waits = idle_causes(view)
    flops = executed_flops(trace, *host_window(trace, view.window)) if trace.details else None
    return RankSummary(
        **view.head(),
        device_name=view.device_name,
        gpu_events=len(view.rows),
        busy_us=busy_us,
        idle_us=view.window_us - busy_us,
        compute_us=measure(compute),
        communication_us=communication_us,
        communication_exposed_us=communication_us - overlap_us,
        overlap_us=overlap_us,
        overlap_ratio=overlap_us / communication_us if communication_us > 0 else None,
        copy_us=measure(copies),
        copy_exposed_us=measure(copies) - measure(intersection(copies, view.set_of(kernels))),
        **waits.gaps.totals_us(),
        idle_by=waits.us,
        flops=flops,
        flops_utilization=_utilization(view, flops),
        steps=len(view.steps),
        step_us=_step_us(trace),
        warnings=[*trace.warnings, *_overrun(view)],
    )


def _utilization(view: View, flops: float | None) -> float | None:
    device = view.catalogued_device
    if flops is None or device is None or view.window_us <= 0:
        return None
    peak = device.peaks.get(device.training_dtype)
    return flops / (view.window_us * 1e-6) / peak if peak else None


def _step_us(trace: Trace) -> float | None:
    steps = profiler_steps(trace)
    if not steps:
        return None
    start, end = step_window(steps)
    return (end - start) / max(1, len(steps) - 1)


def _overrun(view: View) -> list[str]:
    """Durations that reach into the next event of their stream."""
    gpu, count = view.trace.gpu, 0
    for stream in distinct(gpu.stream[view.rows]):
        rows = view.rows[gpu.stream[view.rows] == stream]
        starts = gpu.start_us[rows]
        count += int(np.sum(starts[:-1] + gpu.duration_us[rows][:-1] > starts[1:] + 1e-3))
    if not count:
        return []
    text = "run into the next one of their stream; sums by name count the time that two share once"
    return [f"{count} GPU events {text}"]


def _without_gpu(trace: Trace, window: str) -> RankSummary:
    nothing = {name: 0.0 for name in RankSummary.__struct_fields__ if name.endswith("_us")}
    known: dict[str, Any] = {
        "file": trace.file,
        "rank": trace.rank,
        "device": None,
        "device_name": None,
        "window": window,
        "gpu_events": 0,
        "overlap_ratio": None,
        "idle_by": dict.fromkeys(IDLE_PARTS, 0.0),
        "flops": None,
        "flops_utilization": None,
        "steps": len(profiler_steps(trace)),
        "step_us": _step_us(trace),
        "warnings": [*trace.warnings, no_gpu_event(trace)],
    }
    return RankSummary(**{**nothing, **known})
