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

_FIELDS = 5
"""Batches, wall seconds, CPU seconds, bytes that were read, and of these from the disk."""
_Spent = tuple[float, float, float, float]
"""All fields but the first."""
_IO = "/proc/thread-self/io"
"""What Linux counts for a thread: `rchar` asked for by read(2), `read_bytes` fetched from disks."""


class FetchTimes:
    """Sums for one loader, a row for this process and one for each worker."""

    def __init__(self, num_workers: int) -> None:
        size = _FIELDS * (num_workers + 1)
        self._sums: Any = RawArray("d", size) if num_workers else [0.0] * size

    def add(self, row: int, spent: _Spent) -> None:
        """A batch was made; each row has one writer."""
        at = _FIELDS * row
        for place, value in enumerate((1.0, *spent)):
            self._sums[at + place] += value

    def clear(self) -> None:
        """Start to count anew."""
        for index in range(len(self._sums)):
            self._sums[index] = 0.0

    def per_batch(self) -> _Spent | None:
        """Mean wall and CPU seconds and bytes of one batch; None when none was seen being made."""
        batches, *sums = (sum(self._sums[k::_FIELDS]) for k in range(_FIELDS))
        if not batches:
            return None
        seconds, cpu_seconds, read, fetched = (one / batches for one in sums)
        return seconds, cpu_seconds, read, fetched


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
        before = attempt(_spent, otherwise=None)
        batch = original(fetcher, indices)
        attempt(count, times, before, otherwise=None)
        return batch

    def count(times: FetchTimes, before: _Spent) -> None:
        wall, cpu, read, fetched = (now - then for now, then in zip(_spent(), before, strict=True))
        worker = get_worker_info()
        times.add(0 if worker is None else worker.id + 1, (wall, cpu, read, fetched))

    return fetch


def _spent() -> _Spent:
    """What this thread has spent so far: seconds, CPU seconds, bytes read, bytes from disks."""
    read, fetched = _read_bytes()
    return perf_counter(), thread_time(), read, fetched


def _read_bytes() -> tuple[float, float]:
    try:
        with open(_IO, "rb", buffering=0) as file:
            lines = dict(line.split(b": ") for line in file.read(400).splitlines())
    except OSError:  # no Linux, or a kernel that does not count
        return 0.0, 0.0
    return float(lines[b"rchar"]), float(lines[b"read_bytes"])
