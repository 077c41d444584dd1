"""Launches that waited for room in the queue of their stream, and what made room for them.

A stream holds so many launches (1,024 on current NVIDIA drivers); the next call returns once one of
them has started. So a launch that was held up returns just after another event of its stream has
started, with many between that one and its own.
"""

from __future__ import annotations

import numpy as np

from ridgeline.trace.columns import ABSENT, Ints, Kind, Trace
from ridgeline.trace.host_calls import launch_rows
from ridgeline.trace.sorting import on_ticks

LONG_LAUNCH_US = 100.0
"""No launch takes longer that has nothing to wait for and nothing to load."""
_FULL = 256
"""With fewer events between no queue is full."""


def launches_into_full_queues(trace: Trace) -> tuple[Ints, Ints]:
    """Rows of the kernels whose launch was held up, and of the events whose start made room."""
    gpu, host, launch = trace.gpu, trace.host, launch_rows(trace)
    known = np.flatnonzero((launch != ABSENT) & (gpu.kind == Kind.KERNEL))
    known = known[host.duration_us[launch[known]] > LONG_LAUNCH_US]
    if not len(known):
        return known, known
    of_graphs = np.bincount(launch[launch != ABSENT], minlength=len(host)) > 1
    known = known[~of_graphs[launch[known]]]
    starts = on_ticks(gpu.start_us)
    found, made_room = [known[:0]], [known[:0]]
    lines = np.stack((gpu.device, gpu.stream)).astype(np.int64)
    for line in np.unique(lines[:, known], axis=1).T:
        in_line = np.flatnonzero((lines == line[:, None]).all(axis=0))
        in_line = in_line[np.argsort(starts[in_line], kind="stable")]
        asked = known[(lines[:, known] == line[:, None]).all(axis=0)]
        begins, returns = host.start_us[launch[asked]], host.end_us[launch[asked]]
        last = np.searchsorted(starts[in_line], returns, side="right") - 1
        between = np.searchsorted(starts[in_line], starts[asked]) - last
        started = starts[in_line[np.maximum(last, 0)]]
        full = (between >= _FULL) & (last >= 0) & (started > begins)
        full &= returns - started <= LONG_LAUNCH_US
        found.append(asked[full])
        made_room.append(in_line[last[full]])
    return np.concatenate(found), np.concatenate(made_room)
