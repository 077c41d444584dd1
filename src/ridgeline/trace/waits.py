"""Why the GPU was idle: each gap's cause, by when the work after it was launched.

For a gap (a, b) before the event e, launched at L on the host:
    host wait         L > a                   the host had not asked yet
    kernel wait       L <= a, b - a < 30 µs   launch gap between queued kernels
    dependency wait   L <= a, b - a >= 30 µs  queued, waits for another stream, rank or copy
    unknown           the trace holds no launch of e
The 30 µs are HolisticTraceAnalysis' `consecutive_kernel_delay`, which its documentation calls 30
ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ridgeline.trace.columns import Codes, Floats, Ints, Mask
from ridgeline.trace.intervals import gaps
from ridgeline.trace.launches import launch_start_us
from ridgeline.trace.windows import View

LAUNCH_GAP_US = 30.0


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
    """A `Wait`."""

    @property
    def length_us(self) -> Floats:
        """End minus start."""
        return self.end_us - self.start_us

    def total_us(self, cause: Wait) -> float:
        """Idle time of one cause."""
        return float(self.length_us[self.cause == cause].sum())


def device_gaps(view: View) -> Gaps:
    """When nothing at all ran on the GPU."""
    free = gaps(view.set_of(), view.start_us, view.end_us)
    starts = view.trace.gpu.start_us[view.rows]
    # A gap ends where an event starts, or where the window does.
    places = np.searchsorted(starts, free.end - 1e-6, "left")
    after = np.full(free.size, -1, np.int64)
    found = places < len(starts)
    after[found] = view.rows[places[found]]
    return _judged(view, free.start, free.end, after)


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
