"""Whose time the GPU's idle time is, down to the microsecond: `idle_causes(view)`.

`idle.py` names a cause per gap, as other tools do, by when the launch of the next event *began*.
Here every gap is cut where that launch *returned*: until then the host had not finished asking,
after it the work was pending. The parts add up to the idle time, and each part has one owner:

    of the host, by what the launching thread did (of what is nested, the first that covers a
    moment; where the thread itself did nothing, what the other launching threads did)
        loader          inside the iterator of its loader
        synchronise     blocked until the GPU has finished, or asking over and over whether it has
        allocator       allocating or freeing memory of the GPU
        start_up        calls that initialise and do not come again (`host_calls.first_calls`)
        copy            inside a call that copies and returns when the copy is done
        runtime         other calls of the runtime, launches among them
        operator        inside an operator
        python          inside a Python frame or an annotation
        untraced        nothing was recorded
    of the device
        dependency      pending, and the work before it ran on another stream, or one of the two
                        communicates, or the stream was told to wait for an event before it, or in a
                        job of several streams the same two events enclose such a gap again and
                        again: what comes in every step is of the program, not of the driver
        stall           pending for no reason that the trace shows: the device or its driver
        launch_gap      under 30 µs between launched events
    unknown             the trace holds no launch of the event that ended the gap
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Mask, Narrow, Trace
from ridgeline.trace.critical_path.waits import before_on_stream, recorded_waiters
from ridgeline.trace.host_calls import (
    ALLOCATOR,
    first_calls,
    launch_rows,
    launch_start_us,
    names_matching,
    rows_by_start,
)
from ridgeline.trace.intervals import Intervals, clipped, covered, difference, union
from ridgeline.trace.kernel_names import is_communication
from ridgeline.trace.sorting import distinct
from ridgeline.trace.time.idle import LAUNCH_GAP_US, LOADER, SYNCHRONISE, Gaps, device_gaps
from ridgeline.trace.windows import View

HOST_PARTS = (
    "loader", "synchronise", "allocator", "start_up", "copy", "runtime", "operator", "python",
    "untraced",
)  # fmt: skip
IDLE_PARTS = (*HOST_PARTS, "dependency", "stall", "launch_gap", "unknown")
_COPIES = re.compile(r"Memcpy")
_QUERIES = re.compile(r"^(cuda|hip|cu)(Event|Stream)Query$")
_STREAM_WAITS = re.compile(r"^(cuda|hip|cu)StreamWaitEvent")
_AGAIN = 3
_POLLS = 8
"""So many queries in a row, with no other call or operator between them, are a host that waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCauses:
    """The gaps of one GPU, cut where the launch of the next event returned."""

    gaps: Gaps
    asked_us: Floats
    """For each gap when the host had asked for the next event, inside the gap."""
    stalled: Mask
    """Which gaps end with work pending for no reason that the trace shows."""
    pending_us: Floats
    """For each gap how long the work that ends it had been launched, where that is a wait."""
    us: dict[str, float]
    """Part of `IDLE_PARTS` → time; they add up to the idle time."""

    @property
    def host_us(self) -> float:
        """Idle time in which the host had not asked yet."""
        return sum(self.us[part] for part in HOST_PARTS)


def idle_causes(view: View) -> IdleCauses:
    """The idle time of one GPU by whose it is."""
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
    us.update(_by_activity(trace, threads, found.start_us[of_host], until[of_host]))
    return IdleCauses(
        gaps=found, asked_us=asked, stalled=stalled,
        pending_us=np.where(waits, pending, 0.0), us=us,
    )  # fmt: skip


def _launches(view: View, found: Gaps) -> Ints:
    """The row of the launch of the event after each gap; ABSENT where there is none."""
    rows = np.full(len(found.start_us), ABSENT, np.int64)
    has = found.after >= 0
    if has.any():
        rows[has] = launch_rows(view.trace)[found.after[has]]
    return rows


def _asked(trace: Trace, found: Gaps, calls: Ints) -> tuple[Floats, Mask]:
    """When the launch of the next event returned, inside the gap; and whether the trace says.

    After the last event nothing is asked for any more: all of that gap is the host's.
    """
    host = trace.host
    asked = np.where(found.after < 0, found.end_us, np.nan)
    has = np.flatnonzero(calls != ABSENT)
    asked[has] = host.end_us[calls[has]]
    known = ~np.isnan(asked)
    asked = np.where(known, asked, found.end_us)
    return np.clip(asked, found.start_us, found.end_us), known


def _depends(view: View, found: Gaps) -> Mask:
    """Does the trace show what the work after each gap waited for, or not what came before?"""
    trace, gpu = view.trace, view.trace.gpu
    rows = view.rows
    if not len(found.start_us):
        return np.zeros(0, bool)
    ends = gpu.end_us[rows]
    order = np.argsort(ends, kind="stable")
    place = np.searchsorted(ends[order], found.start_us + 1e-6, "right") - 1
    inside = (place >= 0) & (found.after >= 0)
    before, after = rows[order[np.maximum(place, 0)]], np.maximum(found.after, 0)
    talks = is_communication(trace)
    shown = gpu.stream[before] != gpu.stream[after]
    shown |= talks[before] | talks[after]
    shown |= np.isin(after, recorded_waiters(trace))
    shown |= _told_to_wait(trace, after)
    if len(distinct(gpu.stream[rows])) > 1:
        long = found.length_us >= LAUNCH_GAP_US
        shown |= _recurs(gpu.name[before].astype(np.int64), gpu.name[after], long)
    result: Mask = ~inside | shown
    return result


def _recurs(before: Ints, after: Narrow, counted: Mask) -> Mask:
    """Do the same two names come beside each other three times or more among those counted?"""
    pairs = before << 32 | after.astype(np.int64)
    values, counts = np.unique(pairs[counted], return_counts=True)
    found: Mask = np.isin(pairs, values[counts >= _AGAIN])
    return found


def _told_to_wait(trace: Trace, events: Ints) -> Mask:
    """Was a stream told to wait between the launch of each event and that of the one before it?

    The call does not say which stream: one of another stream in the same stretch counts too.
    """
    host = trace.host
    told = host.is_call & names_matching(trace, _STREAM_WAITS)[host.name]
    times = np.sort(host.start_us[told])
    if not len(times):
        return np.zeros(len(events), bool)
    launched = launch_start_us(trace)
    before = before_on_stream(trace)[events]
    since = np.where(before >= 0, launched[np.maximum(before, 0)], -np.inf)
    found: Mask = np.searchsorted(times, launched[events]) > np.searchsorted(times, since)
    return found & ~np.isnan(launched[events]) & ~np.isnan(since)


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
        spans = Intervals(low[here], high[here])
        own = thread_activities(trace, thread)
        rest = _shared_out(own, spans, shares)
        for other in launching_threads(trace).tolist():
            if other != thread and rest.size:
                rest = _shared_out(thread_activities(trace, other), rest, shares)
        shares["untraced"] += float((rest.end - rest.start).sum())
    return shares


def _shared_out(
    activities: dict[str, Intervals], spans: Intervals, shares: dict[str, float]
) -> Intervals:
    """Give each activity what it covers of the spans, and return what none covers."""
    for name, times in activities.items():
        if not spans.size:
            break
        inside = float(covered(times, spans.start, spans.end).sum())
        if inside > 0:
            shares[name] += inside
            spans = difference(spans, clipped(times, float(spans.start[0]), float(spans.end[-1])))
    return spans


def launching_threads(trace: Trace) -> Ints:
    """Threads that start GPU work."""
    return trace.derived("launching_threads", _launching_threads)


def _launching_threads(trace: Trace) -> Ints:
    launches = launch_rows(trace)
    return distinct(trace.host.thread[launches[launches != ABSENT]]).astype(np.int64)


def thread_activities(trace: Trace, thread: int) -> dict[str, Intervals]:
    """When a thread did what, in the order in which nested activities count."""
    return trace.derived(f"activities {thread}", lambda t: _thread_activities(t, thread))


def _thread_activities(trace: Trace, thread: int) -> dict[str, Intervals]:
    host = trace.host
    rows = rows_by_start(trace, thread)
    call = host.is_call[rows]
    names = host.name[rows]
    starting = np.isin(rows, first_calls(trace))
    category = host.category[rows]
    copying = call & names_matching(trace, _COPIES)[names]
    copying &= np.isin(rows, blocking_copies(trace))
    chosen = {
        "loader": names_matching(trace, LOADER)[names],
        "synchronise": call & names_matching(trace, SYNCHRONISE)[names],
        "start_up": starting,
        "allocator": call & names_matching(trace, ALLOCATOR)[names],
        "copy": copying,
        "runtime": call,
        "operator": category == Category.OPERATOR,
        "python": (category == Category.PYTHON) | (category == Category.ANNOTATION),
    }
    found = {
        name: union(host.start_us[rows[mask]], host.end_us[rows[mask]])
        for name, mask in chosen.items()
    }
    polls = _polls(trace, rows)
    waits = found["synchronise"]
    if polls.size:
        start = np.concatenate((waits.start, polls.start))
        found["synchronise"] = union(start, np.concatenate((waits.end, polls.end)))
    return found


def _polls(trace: Trace, rows: Ints) -> Intervals:
    """When a thread did nothing but ask whether the GPU had finished."""
    host = trace.host
    rows = rows[host.is_call[rows] | (host.category[rows] == Category.OPERATOR)]
    asks = names_matching(trace, _QUERIES)[host.name[rows]]
    if int(asks.sum()) < _POLLS:
        return union(np.zeros(0), np.zeros(0))
    edges = np.flatnonzero(np.diff(np.concatenate(([False], asks, [False])).astype(np.int8)))
    first, last = edges[0::2], edges[1::2] - 1
    long = last - first + 1 >= _POLLS
    return union(host.start_us[rows[first[long]]], host.end_us[rows[last[long]]])


def blocking_copies(trace: Trace) -> Ints:
    """Calls that copy and return only when the copy is done."""
    return trace.derived("blocking_copies", _blocking_copies)


def _blocking_copies(trace: Trace) -> Ints:
    host, gpu, launches = trace.host, trace.gpu, launch_rows(trace)
    known = np.flatnonzero((launches != ABSENT) & (gpu.kind != 0))
    calls = launches[known]
    blocked = host.end_us[calls] >= gpu.end_us[known]
    blocked &= names_matching(trace, _COPIES)[host.name[calls]]
    return distinct(calls[blocked]).astype(np.int64)
