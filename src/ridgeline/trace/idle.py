"""`idle_time(trace)`: why the GPU waited: causes, what the host did meanwhile, the largest gaps."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from ridgeline.trace.call_sites import busiest_call, names_matching, python_line
from ridgeline.trace.columns import ABSENT, Category, Mask, Trace
from ridgeline.trace.intervals import Intervals, covered, union
from ridgeline.trace.launches import launch_rows
from ridgeline.trace.sorting import distinct
from ridgeline.trace.waits import WAITS, Gaps, Wait, device_gaps, overrun_us, stream_gaps
from ridgeline.trace.windows import View, views

SYNCHRONISE = re.compile(r"Synchronize$")
LOADER = re.compile(r"DataLoader|dataloader\.py\(\d+\): (__next__|_next_data|_get_data)")
ALLOCATOR = re.compile(
    r"^(cuda|hip)(Host|Mem)?(Malloc|Free|Alloc)|^(cu|hip)Mem(Create|Map|AddressReserve)"
)


class IdleGap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stretch in which the GPU did nothing."""

    start_us: float
    """Since the first event of the trace."""
    length_us: float
    cause: str
    """`host_wait`, `dependency_wait`, `kernel_wait` or `unknown_wait`."""
    next_event: str | None
    """Name of the GPU event that ended it."""
    stream: int | None
    host_call: str | None
    """What the launching thread was mostly doing."""
    host_call_us: float | None
    """How long that call took in all."""
    line: str | None
    """The line of Python behind it, where the trace has stacks."""


class StreamIdle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Idle time of one stream, between its first event and its last."""

    stream: int
    events: int
    host_wait_us: float
    dependency_wait_us: float
    kernel_wait_us: float
    unknown_wait_us: float
    overrun_us: float
    """Time that events share with the next one of the stream (some tools subtract it)."""


class RankIdle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Idle time of one GPU of one rank."""

    file: str
    rank: int | None
    device: int
    window: str
    window_us: float
    idle_us: float
    host_wait_us: float
    dependency_wait_us: float
    kernel_wait_us: float
    unknown_wait_us: float
    host_wait_by: dict[str, float]
    """Host wait by what the launching thread did: `loader`, `synchronise`, `allocator`, `runtime`
    (other calls), `operator`, `python`, `untraced`; `launch` is from the launch's start on."""
    gaps: list[IdleGap]
    """The largest."""
    streams: list[StreamIdle]


def idle_time(trace: Trace, window: str = "trace", *, top: int = 10) -> list[RankIdle]:
    """Why each GPU of the trace was idle."""
    return [_idle_view(view, top) for view in views(trace, window)]


def _idle_view(view: View, top: int) -> RankIdle:
    trace, found = view.trace, device_gaps(view)
    totals = {f"{name}_us": found.total_us(wait) for name, wait in zip(WAITS, Wait, strict=True)}
    largest = np.argsort(-found.length_us, kind="stable")[:top]
    return RankIdle(
        file=trace.file,
        rank=trace.rank,
        device=view.device,
        window=view.window,
        window_us=view.window_us,
        idle_us=float(found.length_us.sum()),
        **totals,
        host_wait_by=host_wait_by(view, found),
        gaps=[idle_gap(trace, found, int(place)) for place in largest],
        streams=[_stream(view, int(s)) for s in distinct(trace.gpu.stream[view.rows])],
    )


def idle_gap(trace: Trace, found: Gaps, place: int) -> IdleGap:
    """One gap, with what the launching thread did in it."""
    start, end = float(found.start_us[place]), float(found.end_us[place])
    event, launch = int(found.after[place]), float(found.launch_us[place])
    row, line = ABSENT, None
    call = int(launch_rows(trace)[event]) if event >= 0 else ABSENT
    if call != ABSENT:
        thread = int(trace.host.thread[call])
        until = launch if found.cause[place] == Wait.HOST else end
        row = busiest_call(trace, thread, start, min(until, end))
        if row != ABSENT:
            call_start = float(trace.host.start_us[row])
            call_end = call_start + float(trace.host.duration_us[row])
            moment = (max(start, call_start) + min(until, end, call_end)) / 2
            line = python_line(trace, thread, moment)
    return IdleGap(
        start_us=start,
        length_us=end - start,
        cause=WAITS[int(found.cause[place])],
        next_event=trace.names[trace.gpu.name[event]] if event >= 0 else None,
        stream=int(trace.gpu.stream[event]) if event >= 0 else None,
        host_call=None if row == ABSENT else trace.names[trace.host.name[row]],
        host_call_us=None if row == ABSENT else float(trace.host.duration_us[row]),
        line=line,
    )


def _stream(view: View, stream: int) -> StreamIdle:
    found = stream_gaps(view, stream)
    totals = {f"{name}_us": found.total_us(wait) for name, wait in zip(WAITS, Wait, strict=True)}
    return StreamIdle(
        stream=stream,
        events=int(np.sum(view.trace.gpu.stream[view.rows] == stream)),
        **totals,
        overrun_us=overrun_us(view, stream),
    )


def host_wait_by(view: View, found: Gaps) -> dict[str, float]:
    """Host wait by what the launching thread did before it launched; the parts add up to it.

    What a thread does is nested (a synchronise inside an operator inside a frame), so the first
    sort that covers a moment takes it, in the order below.
    """
    trace, host = view.trace, view.trace.host
    chosen = np.flatnonzero(found.cause == Wait.HOST)
    events = found.after[chosen]
    start = found.start_us[chosen]
    launch = np.minimum(found.launch_us[chosen], found.end_us[chosen])
    threads = host.thread[launch_rows(trace)[events]] if len(events) else np.zeros(0, np.int32)
    shares = dict.fromkeys(
        ("loader", "synchronise", "allocator", "runtime", "operator", "python", "untraced"), 0.0
    )
    for thread in distinct(threads):
        here = threads == thread
        low, high = start[here], launch[here]
        below, on_thread = 0.0, host.thread == thread
        so_far: Mask = np.zeros(len(host), bool)
        for name, rows in _activities(trace).items():
            so_far = so_far | rows
            share = float(covered(_set(trace, so_far & on_thread), low, high).sum())
            shares[name] += share - below
            below = share
        shares["untraced"] += float((high - low).sum()) - below
    shares["launch"] = float((found.end_us[chosen] - launch).sum())
    return shares


def _set(trace: Trace, rows: Mask) -> Intervals:
    start = trace.host.start_us[rows]
    return union(start, start + trace.host.duration_us[rows])


def _activities(trace: Trace) -> dict[str, Mask]:
    return trace.derived("host activities", _host_activities)


def _host_activities(trace: Trace) -> dict[str, Mask]:
    host = trace.host
    call = (host.category == Category.RUNTIME) | (host.category == Category.DRIVER)
    return {
        "loader": names_matching(trace, LOADER)[host.name],
        "synchronise": call & names_matching(trace, SYNCHRONISE)[host.name],
        "allocator": call & names_matching(trace, ALLOCATOR)[host.name],
        "runtime": call,
        "operator": host.category == Category.OPERATOR,
        "python": (host.category == Category.PYTHON) | (host.category == Category.ANNOTATION),
    }
