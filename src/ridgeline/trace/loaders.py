"""What a trace tells of torch's data loaders."""

from __future__ import annotations

import re

import numpy as np

from ridgeline.trace.columns import Ints, Trace
from ridgeline.trace.host_calls import names_matching

_ITERATORS = {"_MultiProcessingDataLoaderIter": True, "_SingleProcessDataLoaderIter": False}
"""The iterator in the range around `__next__` → does it have worker processes?"""
_OF_WORKERS = re.compile("_MultiProcessingDataLoaderIter")
_WAITED_US = 500.0
"""Taking a batch that is there, over a queue, takes less."""


def worker_waits(trace: Trace) -> Ints:
    """Rows of ranges in which a loader waited for a batch that its workers had not made yet."""
    host = trace.host
    waits = names_matching(trace, _OF_WORKERS)[host.name]
    return np.flatnonzero(waits & (host.duration_us >= _WAITED_US))


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
