"""Running jobs in the order in which they are interrupted, where nodes differ by free GPUs alone.

Most jobs that look for somebody to interrupt find that all whom they outrank are not enough. That
is summed up over arrays, a row for each node that a job runs on, before anybody is tried.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any

import numpy as np

from ridgeline.queue.pool import Asked, CountedPool, GpuPool, Held, NodePool

_FIRST_ROWS = 256


class RankedRunning:
    """Who runs, the first to be interrupted first."""

    def __init__(self, pool: GpuPool) -> None:
        self._pool = pool
        self._keys: list[tuple[Any, ...]] = []
        """What they are ordered by, and the job."""
        self._key_of: dict[int, tuple[Any, ...]] = {}
        self._rows_of: dict[int, list[int]] = {}
        self._free: list[int] = []
        self._node = np.zeros(0, dtype=np.int64)
        self._gpus = np.zeros(0, dtype=np.int64)
        self._first = np.zeros(0)
        """The first number of the job in a row; infinite: nobody has it."""

    def run(self, job: int, held: Held) -> None:
        """Note where a job runs; `order` says in which order it stands."""
        if not isinstance(self._pool, CountedPool | NodePool):
            return
        rows = self._rows_of[job] = []
        for node, gpus in held:
            if not self._free:
                self._grow()
            row = self._free.pop()
            rows.append(row)
            self._node[row], self._gpus[row] = node, gpus

    def order(self, job: int, numbers: tuple[Any, ...]) -> None:
        """Set by what a running job is ordered, anew where that has changed."""
        self._forget(job)
        key = self._key_of[job] = (*numbers, job)
        insort(self._keys, key)
        self._first[self._rows_of.get(job, [])] = key[0]

    def leave(self, job: int) -> None:
        """Take out a job that runs no longer."""
        self._forget(job)
        rows = self._rows_of.pop(job, [])
        self._first[rows] = np.inf
        self._free += rows

    def lowest(self) -> float:
        """The first number of the job that is interrupted first; infinite: none runs."""
        return float(self._keys[0][0]) if self._keys else np.inf

    def below(self, number: float) -> Iterator[int]:
        """The jobs whose first number is less, in order."""
        for key in self._keys:
            if not key[0] < number:
                return
            yield key[-1]

    def could_make_room(self, asked: Asked, number: float) -> bool:
        """Whether a job would fit if nobody ran whose first number is less.

        Of a pool that is neither counted nor of plain nodes it is not known, and not denied.
        """
        pool = self._pool
        if not isinstance(pool, CountedPool | NodePool):
            return True
        rows = np.flatnonzero(self._first < number)
        if isinstance(pool, CountedPool):
            return bool(pool.free + self._gpus[rows].sum() >= asked)
        given = np.bincount(self._node[rows], self._gpus[rows], minlength=len(pool.free_of))
        reach = given + np.array(pool.free_of)
        whole, rest = divmod(asked, pool.largest)
        if np.count_nonzero(reach >= pool.largest) < whole:
            return False
        return not rest or np.count_nonzero(reach >= rest) > whole

    def _forget(self, job: int) -> None:
        key = self._key_of.pop(job, None)
        if key is not None:
            del self._keys[bisect_left(self._keys, key)]

    def _grow(self) -> None:
        before = len(self._node)
        more = max(_FIRST_ROWS, before)
        self._free += range(before, before + more)
        zeros = np.zeros(more, dtype=np.int64)
        self._node, self._gpus = (np.concatenate([one, zeros]) for one in (self._node, self._gpus))
        self._first = np.concatenate([self._first, np.full(more, np.inf)])
