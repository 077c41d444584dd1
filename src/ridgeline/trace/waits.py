"""What a GPU event or a host thread had to wait for: an own stream, another stream, another thread.

A GPU event waits for the event before it on its stream, and for another stream where `cuda_sync`
records say so (a stream wait names the record and its stream); without such records, a stream that
stood still with work in its queue waited for the event that ended last on another stream.

A host thread pauses where it has no operator or call open. When another of the threads that feed
the GPU was busy for most of a pause (autograd's and the main one take turns), the pause was spent
waiting for that thread, and ends with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Trace
from ridgeline.trace.host_calls import launch_start_us, names_matching
from ridgeline.trace.intervals import Intervals, covered, union
from ridgeline.trace.sorting import distinct, each, on_ticks

NONE = -1
"""No such event, or no edge."""
_TICK_US = 0.002
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


def grain_us(trace: Trace) -> float:
    """By how much two stamps of one moment may differ.

    Start and length are rounded each: to microseconds where all are whole ones, else nanoseconds.
    """
    gpu = trace.gpu
    whole = not (np.mod(gpu.start_us, 1.0).any() or np.mod(gpu.duration_us, 1.0).any())
    return 1.0 if whole else _TICK_US


def waits_for(trace: Trace, before: Ints, unexplained: Floats) -> Ints:
    """The event of another stream that each GPU event waited for, or NONE."""
    gpu = trace.gpu
    found = np.full(len(gpu), NONE, np.int64)
    if len(distinct(gpu.stream)) < 2:
        return found
    ends = on_ticks(gpu.end_us)
    by_end = np.argsort(ends, kind="stable")
    starts = on_ticks(gpu.start_us) + grain_us(trace)
    last = np.searchsorted(ends[by_end], starts, side="right") - 1
    rows = np.flatnonzero((last >= 0) & (unexplained > _QUEUED_WAIT_US))
    place = last[rows]
    place -= by_end[place] == rows  # what is as short as its stamps' grain ends before it begins
    candidate = by_end[place]
    other = (place >= 0) & (candidate != before[rows])
    other &= gpu.stream[candidate] != gpu.stream[rows]
    found[rows[other]] = candidate[other]
    for row, event in recorded_waits(trace):
        found[row] = event
    return found


def recorded_waits(trace: Trace) -> list[tuple[int, int]]:
    """(GPU event, event of another stream that it waits for), as cuda_sync records tell it."""
    return trace.derived("recorded_waits", _recorded_waits)


def recorded_waiters(trace: Trace) -> Ints:
    """Rows of GPU events that wait for another stream, as cuda_sync records tell it."""
    return np.array([row for row, _ in recorded_waits(trace)], np.int64)


def _recorded_waits(trace: Trace) -> list[tuple[int, int]]:
    sync, gpu, host = trace.sync, trace.gpu, trace.host
    pairs: list[tuple[int, int]] = []
    rows = [
        row
        for row in range(len(sync))
        if "Wait" in trace.names[sync.name[row]] and sync.wait_on_stream[row] != ABSENT
    ]
    if not rows:
        return pairs
    numbered = np.flatnonzero(host.correlation > 0)
    moments = each(host.start_us[numbered])
    calls = dict(zip(each(host.correlation[numbered]), moments, strict=True))
    streams, grain = _launch_orders(trace), grain_us(trace)
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
            if gpu.ends_of(source) <= gpu.start_us[target] + grain:
                pairs.append((target, source))
    return pairs


def _launch_orders(trace: Trace) -> dict[int, tuple[Floats, Ints]]:
    """For each stream when its events were launched, and their rows, in the order it runs them.

    A launch that is not in the trace came after those of what ran before it; with none of them
    there, before the trace began.
    """
    asked = launch_start_us(trace)
    found = {}
    for stream in distinct(trace.gpu.stream).tolist():
        rows = np.flatnonzero(trace.gpu.stream == stream)
        rows = rows[np.argsort(trace.gpu.start_us[rows], kind="stable")]
        launched = np.where(np.isnan(asked[rows]), -np.inf, asked[rows])
        before = np.maximum.accumulate(launched)
        launched = np.where(np.isnan(asked[rows]), before, launched)
        order = np.argsort(launched, kind="stable")
        found[stream] = (launched[order], rows[order])
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


FRAMES = re.compile(r"^(ProfilerStep|Optimizer\.|## |\[)")
"""Open while a thread waits: old traces write annotations and steps as operators."""
_WOKEN = 0.05
"""Another thread that stops this part of a pause before its end, or later, has ended it."""
_LEAST_PAUSE_US = 10.0
"""Shorter pauses of a thread are its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Times in which a thread did nothing while another one worked."""

    thread: Ints
    begin_us: Floats
    end_us: Floats
    other: Ints
    """The thread that worked."""
    other_us: Floats
    """Its last busy moment in the pause."""


def pauses(trace: Trace, threads: Ints) -> Pauses:
    """All pauses of these threads in which another of them worked."""
    host = trace.host
    working = (host.category == Category.OPERATOR) | host.is_call
    # Old traces write annotations and steps as operators: they are open while a thread waits.
    working &= ~names_matching(trace, FRAMES)[host.name]
    busy: dict[int, Intervals] = {}
    for thread in threads.tolist():
        rows = np.flatnonzero(working & (host.thread == thread))
        busy[thread] = union(host.start_us[rows], host.ends_of(rows))
    found: list[tuple[Ints, Floats, Floats, Ints, Floats]] = []
    origin = min((float(spans.start[0]) for spans in busy.values() if spans.size), default=0.0)
    for thread, (begin, end) in busy.items():
        if not len(begin):
            continue
        # A thread that begins later than another was woken by it, whatever its share.
        gap_begin, gap_end = np.append(origin, end[:-1]), begin
        long = gap_end - gap_begin > _LEAST_PAUSE_US
        gap_begin, gap_end = gap_begin[long], gap_end[long]
        best = np.where(gap_begin == origin, 0.0, 0.5)  # less than half a pause is chance
        who = np.full(len(gap_begin), NONE, np.int64)
        moment = np.zeros(len(gap_begin))
        for other, spans in busy.items():
            if other == thread or not spans.size:
                continue
            length = gap_end - gap_begin
            share = covered(spans, gap_begin, gap_end) / length
            last = np.searchsorted(spans.start, gap_end) - 1
            until = np.minimum(spans.end[np.maximum(last, 0)], gap_end)
            # Whoever stopped just before this thread went on has woken it, busy before or not.
            woken = (gap_end - until < _WOKEN * length) & (until > gap_begin)
            share = np.where(woken, np.maximum(share, 0.5 + 0.5 * share), share)
            better = (share > best) & (last >= 0)
            best[better], who[better] = share[better], other
            moment[better] = until[better]
        taken = who != NONE
        found.append((np.full(int(taken.sum()), thread, np.int64), gap_begin[taken],
                      gap_end[taken], who[taken], moment[taken]))  # fmt: skip
    columns = [np.concatenate(part) if found else np.zeros(0) for part in zip(*found, strict=True)]
    if not columns:
        columns = [np.zeros(0)] * 5
    return Pauses(
        thread=columns[0].astype(np.int64), begin_us=columns[1], end_us=columns[2],
        other=columns[3].astype(np.int64), other_us=columns[4],
    )  # fmt: skip
