"""Why the GPU was idle: `idle_time(trace)` gives causes, what the host did, the largest gaps.

For a gap (a, b) before the event e, launched at L on the host by a call that returned at R:
    host wait         L > a                   the host had not asked yet
    host wait         R - a > (b - a) / 2,    it was still asking: a kernel was loaded in its first
                      b - a >= 1 ms           launch, or a queue made
    kernel wait       L <= a, b - a < 30 µs   launch gap between queued kernels
    dependency wait   L <= a, b - a >= 30 µs  queued, waits for another stream, rank or copy
    unknown           the trace holds no launch of e
The 30 µs are HolisticTraceAnalysis' `consecutive_kernel_delay`, which its documentation calls 30
ns; the second line is ours, for gaps of the whole GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Codes, Floats, Ints, Mask, Trace
from ridgeline.trace.host_calls import (
    WAIT_CALLS,
    busiest_call,
    launch_rows,
    launch_start_us,
    names_matching,
    python_line,
)
from ridgeline.trace.intervals import Intervals, covered, gaps, union
from ridgeline.trace.sorting import distinct
from ridgeline.trace.start_up_calls import ALLOCATOR
from ridgeline.trace.windows import GpuRecord, View, views

LAUNCH_GAP_US = 30.0
_LOADS_US = 1000.0
"""A shorter gap does not show that its launch loaded anything."""


class Wait(IntEnum):
    """Cause of a gap."""

    HOST = 0
    DEPENDENCY = 1
    KERNEL = 2
    UNKNOWN = 3


WAITS = tuple(f"{wait.name.lower()}_wait" for wait in Wait)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Gaps of one GPU or one stream, by start."""

    start_us: Floats
    end_us: Floats
    after: Ints
    """Row in `trace.gpu` of the event that ends the gap; -1 where the window ends first."""
    launch_us: Floats
    """When that event was launched; NaN where the trace does not say."""
    cause: Codes
    """The `Wait` as a number."""

    @property
    def length_us(self) -> Floats:
        """How long each of them is."""
        return self.end_us - self.start_us

    def total_us(self, cause: Wait) -> float:
        """Idle time of one cause."""
        return float(self.length_us[self.cause == cause].sum())

    def totals_us(self) -> dict[str, Any]:
        """Idle time by cause, as records name it: `host_wait_us` and so on."""
        return {f"{name}_us": self.total_us(wait) for name, wait in zip(WAITS, Wait, strict=True)}


def device_gaps(view: View) -> Gaps:
    """When nothing at all ran on the GPU."""
    return view.once("device_gaps", _device_gaps)


def _device_gaps(view: View) -> Gaps:
    free = gaps(view.set_of(), view.start_us, view.end_us)
    starts = view.trace.gpu.start_us[view.rows]
    # A gap ends where an event starts, or where the window does.
    places = np.searchsorted(starts, free.end - 1e-6, "left")
    after = np.full(free.size, -1, np.int64)
    found = places < len(starts)
    after[found] = view.rows[places[found]]
    judged = _judged(view, free.start, free.end, after)
    judged.cause[_still_asked_for(view.trace, judged)] = Wait.HOST
    return judged


def _still_asked_for(trace: Trace, found: Gaps) -> Mask:
    """Which long gaps had the call that launches what ends them go on for most of them."""
    calls = np.full(len(found.after), ABSENT, np.int64)
    has = found.after >= 0
    calls[has] = launch_rows(trace)[found.after[has]]
    returned = np.full(len(calls), -np.inf)
    returned[calls != ABSENT] = trace.host.ends_of(calls[calls != ABSENT])
    length = found.length_us
    still: Mask = (length >= _LOADS_US) & (returned - found.start_us > 0.5 * length)
    return still


def stream_gaps(view: View, stream: int) -> Gaps:
    """When one stream had nothing running between its first event and its last."""
    gpu = view.trace.gpu
    rows = view.rows[gpu.stream[view.rows] == stream]
    starts = gpu.start_us[rows]
    ends = np.maximum.accumulate(starts + gpu.duration_us[rows])
    free = np.flatnonzero(starts[1:] > ends[:-1])
    return _judged(view, ends[free], starts[free + 1], rows[free + 1])


def _judged(view: View, start: Floats, end: Floats, after: Ints) -> Gaps:
    launches = launch_start_us(view.trace)
    launch = np.full(len(start), np.nan)
    if len(launches):
        launch[after >= 0] = launches[after[after >= 0]]
    long: Mask = end - start >= LAUNCH_GAP_US
    cause = np.where(long, Wait.DEPENDENCY, Wait.KERNEL).astype(np.int8)
    cause[launch > start] = Wait.HOST
    cause[np.isnan(launch)] = Wait.UNKNOWN
    return Gaps(start_us=start, end_us=end, after=after, launch_us=launch, cause=cause)


def overrun_us(view: View, stream: int) -> float:
    """Time that events of a stream share with the one that starts next on it."""
    gpu = view.trace.gpu
    rows = view.rows[gpu.stream[view.rows] == stream]
    ends = gpu.start_us[rows] + gpu.duration_us[rows]
    return float(np.maximum(ends[:-1] - gpu.start_us[rows][1:], 0.0).sum())


LOADER = re.compile(r"DataLoader|dataloader\.py\(\d+\): (__next__|_next_data|_get_data)")


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


class RankIdle(GpuRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Idle time of one GPU of one rank."""

    idle_us: float
    host_wait_us: float
    dependency_wait_us: float
    kernel_wait_us: float
    unknown_wait_us: float
    host_wait_by: dict[str, float]
    """Host wait by what the launching thread did: `loader`, `synchronise`, `allocator`, `runtime`
    (other calls), `operator`, `python`, `untraced`; `launch` is from the launch's start on."""
    gaps: list[IdleGap]
    """The largest gaps, the largest first."""
    streams: list[StreamIdle]


def idle_time(trace: Trace, window: str = "trace", *, top: int = 10) -> list[RankIdle]:
    """Why each GPU of the trace was idle."""
    return [_idle_view(view, top) for view in views(trace, window)]


def _idle_view(view: View, top: int) -> RankIdle:
    trace, found = view.trace, device_gaps(view)
    largest = np.argsort(-found.length_us, kind="stable")[:top]
    return RankIdle(
        **view.head(),
        idle_us=float(found.length_us.sum()),
        **found.totals_us(),
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
        until = launch if start < launch and found.cause[place] == Wait.HOST else end
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
    return StreamIdle(
        stream=stream,
        events=int(np.sum(view.trace.gpu.stream[view.rows] == stream)),
        **found.totals_us(),
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
    launch = np.clip(found.launch_us[chosen], start, found.end_us[chosen])
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
    call = host.is_call
    return {
        "loader": names_matching(trace, LOADER)[host.name],
        "synchronise": call & names_matching(trace, WAIT_CALLS)[host.name],
        "allocator": call & names_matching(trace, ALLOCATOR)[host.name],
        "runtime": call,
        "operator": host.category == Category.OPERATOR,
        "python": (host.category == Category.PYTHON) | (host.category == Category.ANNOTATION),
    }
