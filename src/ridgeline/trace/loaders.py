"""What a trace tells of torch's data loaders."""

from __future__ import annotations

import re

import numpy as np

from ridgeline.trace.columns import Ints, Trace
from ridgeline.trace.host_calls import names_matching
from ridgeline.trace.sorting import distinct, median

_ITERATORS = {"_MultiProcessingDataLoaderIter": True, "_SingleProcessDataLoaderIter": False}
"""The iterator in the range around `__next__` → does it have worker processes?"""
_OF_WORKERS = re.compile("_MultiProcessingDataLoaderIter")
_WAITED_US = 500.0
_WAITED_SHARE = 0.05
"""Taking a batch that is there takes less, over a queue; or where that takes milliseconds, since
the batch is large, a smaller share of a step."""


_UNUSUAL = 3.0
"""Where most batches are there, one that takes so many times the median was waited for."""


def worker_waits(trace: Trace) -> Ints:
    """Rows of ranges in which a loader waited for a batch that its workers had not made yet."""
    host = trace.host
    taken = np.flatnonzero(names_matching(trace, _OF_WORKERS)[host.name])
    found = [np.zeros(0, np.int64)]
    for thread in distinct(host.thread[taken]).tolist():
        rows = taken[host.thread[taken] == thread]
        rows = rows[np.argsort(host.start_us[rows], kind="stable")]
        step = np.diff(host.start_us[rows], prepend=host.start_us[rows[0]])
        least = np.maximum(_WAITED_US, _WAITED_SHARE * step)
        usual = median(host.duration_us[rows])
        if usual < median(least):  # most batches are there: so long it takes to take one
            least = np.maximum(least, _UNUSUAL * usual)
        found.append(rows[host.duration_us[rows] >= least])
    return np.sort(np.concatenate(found))


def loader_workers(trace: Trace) -> bool | None:
    """Does a loader of the run prepare batches in worker processes? None: the trace has no loader.

    With several loaders the answer is that of any with workers.
    """
    found = [
        workers
        for name in trace.names
        for iterator, workers in _ITERATORS.items()
        if iterator in name
    ]
    return any(found) if found else None
