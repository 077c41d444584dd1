"""When a host asks again and again whether the GPU has finished: it waits, though no call blocks.

`while not event.query(): pass` is a row of short calls with nothing between them. Such a row is one
wait: it begins with its first query and returns with its last one, which was told that the work had
ended since the query before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import Category, Floats, Ints, Trace
from ridgeline.trace.host_calls import launch_rows, names_matching, rows_by_start
from ridgeline.trace.sorting import distinct

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
            end_us=host.end_us[rows[last]],
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
