"""Is the GPU waiting for the host to launch? Delays, queue depth, CUDA graphs: `launches(trace)`.

The queue is empty when host wait is more than 30 % of the window and the median time from launch to
start is under 20 µs: every kernel starts as soon as it is asked for. Whether that bounds the run is
for the verdict. Queue depth is launches minus starts, per stream; a graph launch is one entry,
however many kernels it carries.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Floats, Ints, Kind, Trace
from ridgeline.trace.host_calls import launch_rows
from ridgeline.trace.sorting import distinct, median, quantile
from ridgeline.trace.time.idle import Wait, device_gaps
from ridgeline.trace.time.queue_length import queue_changes
from ridgeline.trace.windows import GpuRecord, View, views

EMPTY_QUEUE_HOST_WAIT = 0.30
EMPTY_QUEUE_DELAY_US = 20.0


class StreamQueue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Work that waited in one stream's queue."""

    stream: int
    launches: int
    mean_depth: float
    """Over time, between the first launch and the last start."""
    median_depth: float
    """At a launch, itself not counted."""
    max_depth: int


class RankLaunches(GpuRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the GPU of one rank was fed."""

    gpu_events: int
    launched: int
    """GPU events whose launch is in the trace."""
    launch_calls: int
    """Calls that started them; a graph launch starts many."""
    launch_call_us: float
    """Host time inside those calls."""
    delay_us: dict[str, float]
    """From the start of the launch to the start on the GPU: `p10`, `median`, `p90`."""
    host_wait_share: float
    """The share of the window."""
    queue_empty: bool
    """Does the GPU wait for the host, and start what it gets at once? No verdict on the run."""
    shorter_than_launch_share: float
    """GPU events that are shorter than the call that started them, of those launched."""
    kernels_under_5us_share: float
    graph_launches: int
    graph_events: int
    """GPU events that came with a graph launch."""
    graph_time_share: float
    """The share of the time of all GPU events."""
    queues: list[StreamQueue]


def launches(trace: Trace, window: str = "trace") -> list[RankLaunches]:
    """How each GPU of the trace was fed."""
    return [_launches_of(view) for view in views(trace, window)]


def _launches_of(view: View) -> RankLaunches:
    trace, gpu, host, rows = view.trace, view.trace.gpu, view.trace.host, view.rows
    calls = launch_rows(trace)[rows]
    events, calls = rows[calls != ABSENT], calls[calls != ABSENT]
    delay = gpu.start_us[events] - host.start_us[calls]
    used = distinct(calls)
    waits = device_gaps(view)
    host_wait = waits.total_us(Wait.HOST) / view.window_us if view.window_us > 0 else 0.0
    kernels = gpu.duration_us[rows][gpu.kind[rows] == Kind.KERNEL]
    in_graph = np.isin(calls, graph_calls(trace))
    durations = gpu.duration_us[rows].sum()
    return RankLaunches(
        **view.head(),
        gpu_events=len(rows),
        launched=len(events),
        launch_calls=len(used),
        launch_call_us=float(host.duration_us[used].sum()),
        delay_us=_quantiles(delay),
        host_wait_share=host_wait,
        queue_empty=bool(
            len(delay)
            and host_wait > EMPTY_QUEUE_HOST_WAIT
            and median(delay) < EMPTY_QUEUE_DELAY_US
        ),
        shorter_than_launch_share=_mean(gpu.duration_us[events] < host.duration_us[calls]),
        kernels_under_5us_share=_mean(kernels < 5),
        graph_launches=len(distinct(calls[in_graph])),
        graph_events=int(in_graph.sum()),
        graph_time_share=float(gpu.duration_us[events][in_graph].sum() / durations)
        if durations > 0
        else 0.0,
        queues=[
            queue
            for stream in distinct(gpu.stream[rows])
            if (queue := _queue(view, int(stream))) is not None
        ],
    )


def graph_calls(trace: Trace) -> Ints:
    """Rows of the host's graph launches."""
    named = np.array(["GraphLaunch" in name for name in trace.names], bool)
    return np.flatnonzero(trace.host.is_call & named[trace.host.name])


def _queue(view: View, stream: int) -> StreamQueue | None:
    changes = queue_changes(view, stream)
    if changes is None:
        return None
    length = np.diff(changes.times_us)
    span = float(length.sum())
    depth = changes.length
    at_launch = depth[changes.change > 0] - 1
    return StreamQueue(
        stream=stream,
        launches=len(at_launch),
        mean_depth=float((np.maximum(depth[:-1], 0) * length).sum() / span) if span > 0 else 0.0,
        median_depth=median(np.maximum(at_launch, 0)),
        max_depth=int(max(0, depth.max())),
    )


def _quantiles(values: Floats) -> dict[str, float]:
    if not len(values):
        return {}
    return {
        "p10": quantile(values, 0.1),
        "median": median(values),
        "p90": quantile(values, 0.9),
    }


def _mean(values: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> float:
    return float(values.mean()) if len(values) else 0.0
