"""Whose time the GPU's idle time is, down to the microsecond: `idle_causes(view)`.

`idle.py` names a cause per gap, as other tools do, by when the launch of the next event *began*.
Here every gap is cut where that launch *returned*: until then the host had not finished asking,
after it the work was pending. The parts add up to the idle time, and each part has one owner:

    of the host, by what the launching thread did (`host_activities.py`); where it did nothing, by
    what the other launching threads did
        loader, synchronise, allocator, start_up, copy, runtime, operator, python, untraced
    of the device
        dependency      pending, and the trace records that the stream waits for another one, or,
                        in a job of several streams, the same two events enclose such a gap again
                        and again: what comes in every step is of the program, not of the driver
        stall           pending for no reason that the trace shows: the device or its driver
        launch_gap      under 30 µs between launched events
    unknown             the trace holds no launch of the event that ended the gap
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import ABSENT, Floats, Ints, Mask, Narrow, Trace
from ridgeline.trace.host_calls import launch_rows
from ridgeline.trace.intervals import Intervals, covered, difference, measure
from ridgeline.trace.sorting import among, counted, distinct
from ridgeline.trace.time.copy_directions import rows_towards
from ridgeline.trace.time.host_activities import (
    HOST_PARTS,
    busy_time,
    launching_threads,
    parts_of_thread,
)
from ridgeline.trace.time.idle import LAUNCH_GAP_US, Gaps, device_gaps
from ridgeline.trace.waits import recorded_waiters
from ridgeline.trace.windows import View

IDLE_PARTS = (*HOST_PARTS, "dependency", "stall", "launch_gap", "unknown")
_AGAIN = 3
_MUCH_BYTES = 1_000_000
"""A host that has waited for so much data works on them, and not because it has waited."""
_LONG_US = 200.0
"""No operator's dispatch takes that long: in a longer gap the host did something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCauses:
    """The gaps of one GPU, cut where the launch of the next event returned."""

    gaps: Gaps
    stalled: Mask
    """Which gaps end with work pending for no reason that the trace shows."""
    pending_us: Floats
    """For each gap how long the work that ends it had been launched, where that is a wait."""
    us: dict[str, float]
    """Part of `IDLE_PARTS` → time; they add up to the idle time."""
    long_us: dict[str, float]
    """Part of the host's → its time in stretches that no single dispatch explains."""
    fetched_us: float
    """The host's time in such stretches that begin when much data had come from the GPU."""

    @property
    def host_us(self) -> float:
        """Idle time in which the host had not asked yet."""
        return sum(self.us[part] for part in HOST_PARTS)


def idle_causes(view: View) -> IdleCauses:
    """The idle time of one GPU by whose it is; worked out once, for several questions ask."""
    return view.once("idle_causes", _idle_causes)


def _idle_causes(view: View) -> IdleCauses:
    trace, found = view.trace, device_gaps(view)
    calls = _launches(view, found)
    asked, known = _asked(trace, found, calls)
    pending = found.end_us - asked
    short = found.length_us < LAUNCH_GAP_US
    before = asked <= found.start_us
    gap = known & short & before
    waits = known & ~gap & (pending >= LAUNCH_GAP_US)
    # What is left of a gap after its launch, and is no wait, is the latency of that launch.
    until = np.where(waits, asked, np.where(gap, found.start_us, found.end_us))
    stalled = waits & ~_depends(view, found)
    us = dict.fromkeys(IDLE_PARTS, 0.0)
    us["unknown"] = float(found.length_us[~known].sum())
    us["launch_gap"] = float(found.length_us[gap].sum())
    us["stall"] = float(pending[stalled].sum())
    us["dependency"] = float(pending[waits & ~stalled].sum())
    of_host = known & (until > found.start_us)
    threads = _threads(trace, calls[of_host])
    low, high = found.start_us[of_host], until[of_host]
    long = high - low >= _LONG_US
    fetched = long & np.isin(low, _ends_of_large_copies(view))
    long_us = _by_activity(trace, threads[long], low[long], high[long])
    rest = _by_activity(trace, threads[~long], low[~long], high[~long])
    us.update({part: long_us[part] + rest[part] for part in HOST_PARTS})
    return IdleCauses(
        gaps=found, stalled=stalled,
        pending_us=np.where(waits, pending, 0.0), us=us, long_us=long_us,
        fetched_us=float((high - low)[fetched].sum()),
    )  # fmt: skip


def _launches(view: View, found: Gaps) -> Ints:
    """The row of the launch of the event after each gap; ABSENT where there is none."""
    rows = np.full(len(found.start_us), ABSENT, np.int64)
    has = found.after >= 0
    if has.any():
        rows[has] = launch_rows(view.trace)[found.after[has]]
    return rows


def _ends_of_large_copies(view: View) -> Floats:
    rows = rows_towards(view, "DtoH")
    gpu = view.trace.gpu
    return gpu.ends_of(rows[gpu.bytes[rows] >= _MUCH_BYTES])


def _asked(trace: Trace, found: Gaps, calls: Ints) -> tuple[Floats, Mask]:
    """When the launch of the next event returned, inside the gap; and whether the trace says.

    After the last event nothing is asked for any more: all of that gap is the host's.
    """
    host = trace.host
    asked = np.where(found.after < 0, found.end_us, np.nan)
    has = np.flatnonzero(calls != ABSENT)
    asked[has] = host.ends_of(calls[has])
    known = ~np.isnan(asked)
    asked = np.where(known, asked, found.end_us)
    return np.clip(asked, found.start_us, found.end_us), known


def _depends(view: View, found: Gaps) -> Mask:
    """Does the trace show what the work after each gap waited for, or not what came before?"""
    trace, gpu = view.trace, view.trace.gpu
    rows = view.rows
    if not len(found.start_us):
        return np.zeros(0, bool)
    ends = gpu.ends_of(rows)
    order = np.argsort(ends, kind="stable")
    place = np.searchsorted(ends[order], found.start_us + 1e-6, "right") - 1
    inside = (place >= 0) & (found.after >= 0)
    before, after = rows[order[np.maximum(place, 0)]], np.maximum(found.after, 0)
    shown = among(after, recorded_waiters(trace))
    if len(distinct(gpu.stream[rows])) > 1:
        long = found.length_us >= LAUNCH_GAP_US
        shown |= _recurs(gpu.name[before].astype(np.int64), gpu.name[after], long)
    result: Mask = ~inside | shown
    return result


def _recurs(before: Ints, after: Narrow, chosen: Mask) -> Mask:
    """Do the same two names come beside each other three times or more among those chosen?"""
    pairs = before << 32 | after.astype(np.int64)
    values, times = counted(pairs[chosen])
    return among(pairs, values[times >= _AGAIN])


def _threads(trace: Trace, calls: Ints) -> Ints:
    """The thread of each launch; where there is none, the one that launches most."""
    host, launches = trace.host, launch_rows(trace)
    of_all = host.thread[launches[launches != ABSENT]]
    busiest = int(np.bincount(of_all).argmax()) if len(of_all) else 0
    if not len(host):
        return np.full(len(calls), busiest, np.int64)
    return np.where(calls != ABSENT, host.thread[np.maximum(calls, 0)], busiest).astype(np.int64)


def _by_activity(trace: Trace, threads: Ints, low: Floats, high: Floats) -> dict[str, float]:
    """The time of these stretches of threads by what was done in them."""
    shares = dict.fromkeys(HOST_PARTS, 0.0)
    for thread in distinct(threads).tolist():
        here = threads == thread
        rest = _shared_out(trace, thread, Intervals(low[here], high[here]), shares)
        for other in launching_threads(trace).tolist():
            if other != thread and rest.size:
                rest = _shared_out(trace, other, rest, shares)
        shares["untraced"] += measure(rest)
    return shares


def _shared_out(trace: Trace, thread: int, spans: Intervals, shares: dict[str, float]) -> Intervals:
    """Give each part what it covers of the spans, and return what none covers."""
    for name, times in parts_of_thread(trace, thread).items():
        shares[name] += float(covered(times, spans.start, spans.end).sum())
    return difference(spans, busy_time(trace, thread))
