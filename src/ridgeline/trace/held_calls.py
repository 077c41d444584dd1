"""Host calls that wait for the GPU, though their names say nothing of it: polls, copies, launches.

A host that asks again and again whether the GPU has finished waits, though no call blocks: `while
not event.query(): pass` is a row of short calls with nothing between them. Such a row is one wait:
it begins with its first query and returns with its last one, which was told that the work had ended
since the query before.

A call may return when its copy is done, or all but done. A copy from or to memory that is not
pinned goes through a buffer of the driver, a piece at a time: `cudaMemcpyAsync` returns when the
last piece is in the buffer, some microseconds before the copy ends. Until then the host waits for
the copy, as it does in `cudaMemcpy`.

A launch may wait for room in the queue of its stream. A stream holds so many launches (1,024 on
current NVIDIA drivers); the next call returns once one of them has started. So a launch that was
held up returns just after another event of its stream has started, with many between that one and
its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Kind, Mask, Trace
from ridgeline.trace.host_calls import launch_rows, names_matching, rows_by_start
from ridgeline.trace.sorting import distinct, on_ticks

_QUERIES = re.compile(r"^(cuda|hip|cu)(Event|Stream)Query$")
_POLLS = 8
"""So many queries in a row, with no other call or operator between them, are a host that waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polls:
    """Waits of one thread, each a row of queries."""

    first: Ints
    """Row of the first query of each."""
    begin_us: Floats
    since_us: Floats
    """When the last query but one began: what was waited for had not ended then."""
    end_us: Floats

    def __len__(self) -> int:
        return len(self.first)


def polls_of_thread(trace: Trace, thread: int) -> Polls:
    """When a thread did nothing but ask whether the GPU had finished."""
    host, rows = trace.host, rows_by_start(trace, thread)
    asking = names_matching(trace, _QUERIES)
    if asking.any():
        rows = rows[host.is_call[rows] | (host.category[rows] == Category.OPERATOR)]
        asks = asking[host.name[rows]]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], asks, [False])).astype(np.int8)))
        first, last = edges[0::2], edges[1::2] - 1
        long = last - first + 1 >= _POLLS
        first, last = rows[first[long]], last[long]
        return Polls(
            first=first,
            begin_us=host.start_us[first],
            since_us=host.start_us[rows[last - 1]],
            end_us=host.ends_of(rows[last]),
        )
    none = np.zeros(0)
    return Polls(first=np.zeros(0, np.int64), begin_us=none, since_us=none, end_us=none)


def polls(trace: Trace) -> Polls:
    """Polling of all threads that start GPU work; a watchdog's own thread holds nothing up."""
    launches = launch_rows(trace)
    threads = distinct(trace.host.thread[launches[launches >= 0]]).tolist()
    found = [polls_of_thread(trace, thread) for thread in threads]
    return Polls(
        first=np.concatenate([np.zeros(0, np.int64), *(one.first for one in found)]),
        begin_us=np.concatenate([np.zeros(0), *(one.begin_us for one in found)]),
        since_us=np.concatenate([np.zeros(0), *(one.since_us for one in found)]),
        end_us=np.concatenate([np.zeros(0), *(one.end_us for one in found)]),
    )


_COPIES = re.compile(r"Memcpy")
_PAGEABLE = re.compile(r"Pageable")
_MOST = 0.5
"""A call that goes on for a larger part of its copy has fed the copy."""


def blocking_copies(trace: Trace) -> Ints:
    """Rows of calls that copy and return only when the copy is done, or all but done."""
    return trace.derived("blocking_copies", _blocking_copies)


def _blocking_copies(trace: Trace) -> Ints:
    host, gpu, launches = trace.host, trace.gpu, launch_rows(trace)
    known = np.flatnonzero((launches != ABSENT) & (gpu.kind != Kind.KERNEL))
    calls = launches[known]
    blocked = (host.ends_of(calls) >= gpu.ends_of(known)) | staged_copies(trace)[known]
    blocked &= names_matching(trace, _COPIES)[host.name[calls]]
    return distinct(calls[blocked]).astype(np.int64)


def staged_copies(trace: Trace) -> Mask:
    """Which GPU events are copies that their call fed, and ended a little before them."""
    return trace.derived("staged_copies", _staged_copies)


def _staged_copies(trace: Trace) -> Mask:
    host, gpu, launches = trace.host, trace.gpu, launch_rows(trace)
    found: Mask = (launches != ABSENT) & (gpu.kind == Kind.MEMCPY)
    found &= names_matching(trace, _PAGEABLE)[gpu.name]
    rows = np.flatnonzero(found)
    fed_us = host.ends_of(launches[rows]) - gpu.start_us[rows]
    found[rows] = (fed_us > _MOST * gpu.duration_us[rows]) & (fed_us < gpu.duration_us[rows])
    return found


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
    used = sorted(set(zip(*lines[:, known].tolist(), strict=True)))
    for line in np.array(used, np.int64).reshape(-1, 2):
        in_line = np.flatnonzero((lines == line[:, None]).all(axis=0))
        in_line = in_line[np.argsort(starts[in_line], kind="stable")]
        asked = known[(lines[:, known] == line[:, None]).all(axis=0)]
        begins, returns = host.start_us[launch[asked]], host.ends_of(launch[asked])
        last = np.searchsorted(starts[in_line], returns, side="right") - 1
        between = np.searchsorted(starts[in_line], starts[asked]) - last
        started = starts[in_line[np.maximum(last, 0)]]
        full = (between >= _FULL) & (last >= 0) & (started > begins)
        full &= returns - started <= LONG_LAUNCH_US
        found.append(asked[full])
        made_room.append(in_line[last[full]])
    return np.concatenate(found), np.concatenate(made_room)
