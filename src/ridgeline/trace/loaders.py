"""What a trace tells of torch's data loaders."""

from __future__ import annotations

from ridgeline.trace.columns import Trace

_ITERATORS = {"_MultiProcessingDataLoaderIter": True, "_SingleProcessDataLoaderIter": False}
"""The iterator in the range around `__next__` → does it have worker processes?"""


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
