"""How long making a batch takes, wherever it is made: in the training process or in a worker.

The dataset's fetcher is timed where it runs. Workers are forked, so what they add to a shared
array is seen here; workers that are spawned do not inherit it, and their time stays unknown.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray
from time import perf_counter, thread_time
from typing import Any

from torch.utils.data import get_worker_info

from ridgeline.measure.child.guard import attempt
from ridgeline.patches import patch

_FIELDS = 3
"""Batches, wall seconds, CPU seconds."""


class FetchTimes:
    """Sums for one loader, a row for this process and one for each worker."""

    def __init__(self, num_workers: int) -> None:
        size = _FIELDS * (num_workers + 1)
        self._sums: Any = RawArray("d", size) if num_workers else [0.0] * size

    def add(self, row: int, seconds: float, cpu_seconds: float) -> None:
        """A batch was made; each row has one writer."""
        at = _FIELDS * row
        self._sums[at] += 1
        self._sums[at + 1] += seconds
        self._sums[at + 2] += cpu_seconds

    def clear(self) -> None:
        """Start to count anew."""
        for index in range(len(self._sums)):
            self._sums[index] = 0.0

    def per_batch(self) -> tuple[float, float] | None:
        """Mean wall and CPU seconds of one batch; None when none was seen being made."""
        batches, seconds, cpu_seconds = (sum(self._sums[k::_FIELDS]) for k in range(_FIELDS))
        return (seconds / batches, cpu_seconds / batches) if batches else None


def time_fetches(find: Callable[[Any], FetchTimes | None]) -> None:
    """Patch torch's two fetchers; `find` tells the sums that belong to a dataset."""
    for name in (
        "torch.utils.data._utils.fetch:_MapDatasetFetcher.fetch",
        "torch.utils.data._utils.fetch:_IterableDatasetFetcher.fetch",
    ):
        patch(name, lambda original: _timed(original, find))


def _timed(
    original: Callable[..., Any], find: Callable[[Any], FetchTimes | None]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def fetch(fetcher: Any, indices: Any) -> Any:
        times = find(fetcher.dataset)
        if times is None:
            return original(fetcher, indices)
        started, cpu_started = perf_counter(), thread_time()
        batch = original(fetcher, indices)
        attempt(count, times, perf_counter() - started, thread_time() - cpu_started, otherwise=None)
        return batch

    def count(times: FetchTimes, seconds: float, cpu_seconds: float) -> None:
        worker = get_worker_info()
        times.add(0 if worker is None else worker.id + 1, seconds, cpu_seconds)

    return fetch
