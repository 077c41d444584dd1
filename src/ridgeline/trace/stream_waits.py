"""What a GPU event had to wait for on the device: its own stream, or another one.

From `cuda_sync` records where the trace has them (a stream wait names the record and its stream);
else, for a stream that stood still with work in its queue, the event that ended last on another
stream.
"""

from __future__ import annotations

import numpy as np

from ridgeline.trace.columns import ABSENT, Floats, Ints, Trace
from ridgeline.trace.launches import launch_start_us
from ridgeline.trace.sorting import distinct

NONE = -1
"""No such event, or no edge."""
_QUEUED_WAIT_US = 30.0
"""A stream that stands still for longer with work in its queue waits for something: the threshold
of HolisticTraceAnalysis between launch gap and other waits."""


def before_on_stream(trace: Trace) -> Ints:
    """The event before each GPU event on its device and stream, or NONE."""
    gpu = trace.gpu
    order = np.lexsort((np.arange(len(gpu)), gpu.start_us, gpu.stream, gpu.device))
    found = np.full(len(gpu), NONE, np.int64)
    same = (gpu.stream[order[1:]] == gpu.stream[order[:-1]]) & (
        gpu.device[order[1:]] == gpu.device[order[:-1]]
    )
    found[order[1:][same]] = order[:-1][same]
    return found


def waits_for(trace: Trace, before: Ints, unexplained: Floats) -> Ints:
    """The event of another stream that each GPU event waited for, or NONE."""
    gpu = trace.gpu
    found = np.full(len(gpu), NONE, np.int64)
    if len(distinct(gpu.stream)) < 2:
        return found
    by_end = np.argsort(gpu.end_us, kind="stable")
    last = np.searchsorted(gpu.end_us[by_end], gpu.start_us, side="right") - 1
    rows = np.flatnonzero((last >= 0) & (unexplained > _QUEUED_WAIT_US))
    candidate = by_end[last[rows]]
    other = (candidate != before[rows]) & (candidate != rows)
    other &= gpu.stream[candidate] != gpu.stream[rows]
    found[rows[other]] = candidate[other]
    for row, event in _recorded_waits(trace):
        found[row] = event
    return found


def _recorded_waits(trace: Trace) -> list[tuple[int, int]]:
    """(GPU event, event of another stream that it waits for), as cuda_sync records tell it."""
    sync, gpu, host = trace.sync, trace.gpu, trace.host
    pairs: list[tuple[int, int]] = []
    rows = [
        row
        for row in range(len(sync))
        if "Wait" in trace.names[sync.name[row]] and sync.wait_on_stream[row] != ABSENT
    ]
    if not rows:
        return pairs
    calls = dict(zip(host.correlation.tolist(), host.start_us.tolist(), strict=True))
    streams = _launch_orders(trace)
    for row in rows:
        recorded = calls.get(int(sync.wait_on_record[row]))
        waited = calls.get(int(sync.correlation[row]), float(sync.start_us[row]))
        if recorded is None:
            continue
        ahead = streams.get(int(sync.wait_on_stream[row]))
        behind = streams.get(int(sync.stream[row]))
        if ahead is None or behind is None:
            continue
        done = int(np.searchsorted(ahead[0], recorded, side="right")) - 1
        following = int(np.searchsorted(behind[0], waited, side="left"))
        if done >= 0 and following < len(behind[0]):
            source, target = int(ahead[1][done]), int(behind[1][following])
            if gpu.end_us[source] <= gpu.start_us[target]:
                pairs.append((target, source))
    return pairs


def _launch_orders(trace: Trace) -> dict[int, tuple[Floats, Ints]]:
    """For each stream when its events were launched, and their rows, in the order it runs them."""
    asked = launch_start_us(trace)
    launched = np.where(np.isnan(asked), trace.gpu.start_us, asked)
    found = {}
    for stream in distinct(trace.gpu.stream).tolist():
        rows = np.flatnonzero(trace.gpu.stream == stream)
        rows = rows[np.lexsort((trace.gpu.start_us[rows], launched[rows]))]
        found[stream] = (launched[rows], rows)
    return found


def stream_of_call(trace: Trace) -> dict[int, int]:
    """Correlation of a stream synchronise → its stream, from cuda_sync records."""
    sync = trace.sync
    return {
        int(number): int(stream)
        for number, stream, name in zip(
            sync.correlation.tolist(), sync.stream.tolist(), sync.name.tolist(), strict=True
        )
        if "Stream Sync" in trace.names[name] and stream != ABSENT
    }
