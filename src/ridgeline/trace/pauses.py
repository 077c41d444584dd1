"""When a thread did nothing because another worked: autograd's and the main one take turns.

A pause is a time without an operator or a call. When another of the threads that feed the GPU was
busy for most of it, the pause was spent waiting for that thread, and ends with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.call_sites import names_matching
from ridgeline.trace.columns import Category, Floats, Ints, Trace
from ridgeline.trace.intervals import Intervals, covered, union
from ridgeline.trace.stream_waits import NONE

_FRAMES = re.compile(r"^(ProfilerStep|Optimizer\.|## |\[)")
"""Open while a thread waits: old traces write annotations and steps as operators."""
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
    working = (
        (host.category == Category.OPERATOR)
        | (host.category == Category.RUNTIME)
        | (host.category == Category.DRIVER)
    )
    # Old traces write annotations and steps as operators: they are open while a thread waits.
    working &= ~names_matching(trace, _FRAMES)[host.name]
    busy: dict[int, Intervals] = {}
    for thread in threads.tolist():
        rows = np.flatnonzero(working & (host.thread == thread))
        busy[thread] = union(host.start_us[rows], host.end_us[rows])
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
            share = covered(spans, gap_begin, gap_end) / (gap_end - gap_begin)
            last = np.searchsorted(spans.start, gap_end) - 1
            better = (share > best) & (last >= 0)
            best[better], who[better] = share[better], other
            moment[better] = np.minimum(spans.end[last], gap_end)[better]
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
