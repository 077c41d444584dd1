"""Rows decoded by worker processes ahead of who takes them, into memory that all of them share.

A step has so many rows of one shape. Its place in the ring is handed out in chunks to whichever
worker has least to do; a step is ready when all of its chunks are. What stands in a row depends on
the step and the row alone, so nothing depends on which worker decoded it. The memory is anonymous
and goes with the processes, however they end; a worker whose parent is gone ends within a second.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, prod
from multiprocessing.connection import Connection, wait
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, RidgelineError

Decode = Callable[[int, int], NDArray[np.uint8]]
"""What stands in a row of a step; an InputError where it cannot be read."""
_CHUNKS_PER_WORKER = 4
"""The chunks of each step; fewer wait for the slowest, more talk."""
_ORPHAN_SECONDS = 1.0
_HUNG_SECONDS = 300.0
"""No chunk for so long: one image does not take that."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    step: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Done:
    chunk: _Chunk
    seconds: float
    unreadable: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one step, valid until the next is asked for."""

    pixels: NDArray[np.uint8]
    """[rows, *shape]; what could not be read is zero."""
    unreadable: tuple[tuple[int, str], ...]
    """Row, and what was wrong with it."""


@dataclass(slots=True)
class DecodeRate:
    """How fast images were decoded."""

    images: int = 0
    seconds: float = 0.0
    """The time that the worker took."""


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Connection
    chunks: int = 0
    """The chunks that are under way."""


@dataclass(slots=True)
class DecodeRing:
    """An iterator over steps; `close` ends its workers."""

    decode: Decode
    rows: int
    shape: tuple[int, ...]
    workers: int
    """With 0, this process decodes when it is asked."""
    ahead: int
    """Steps decoded before they are needed."""
    step: int = 0
    """The step that is next."""
    last: int | None = None
    """Steps end before it; None: never."""
    rate: DecodeRate = field(default_factory=DecodeRate)
    _memory: NDArray[np.uint8] | None = None
    _crew: list[_Worker] = field(default_factory=list)
    _asked: int = 0
    """Steps before it were handed to workers."""
    _missing: dict[int, int] = field(default_factory=dict)
    """Step → rows that are not there yet."""
    _unreadable: dict[int, list[tuple[int, str]]] = field(default_factory=dict)

    def __iter__(self) -> DecodeRing:
        return self

    def __next__(self) -> Rows:
        if self.last is not None and self.step >= self.last:
            raise StopIteration
        if self._memory is None:
            self._start()
        step = self.step
        if self.workers:
            self._hand_out()
            while self._missing[step]:
                self._hear()
            del self._missing[step]
        else:
            self._take(self._decoded(_Chunk(step, 0, self.rows)))
        self.step = step + 1
        unreadable = tuple(sorted(self._unreadable.pop(step, [])))
        assert self._memory is not None
        return Rows(pixels=self._memory[step % len(self._memory)], unreadable=unreadable)

    def close(self) -> None:
        """End the workers and wait for them."""
        for worker in self._crew:
            worker.process.kill()
        for worker in self._crew:
            worker.process.join()
            worker.pipe.close()
        self._crew.clear()

    def _start(self) -> None:
        slots = self.ahead + 1 if self.workers else 1
        size = slots * self.rows * prod(self.shape)
        shared = mmap.mmap(-1, max(1, size))
        self._memory = np.frombuffer(shared, np.uint8)[:size].reshape(slots, self.rows, *self.shape)
        self._asked = self.step
        context = multiprocessing.get_context("fork")
        for _ in range(self.workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=self._work, args=(theirs, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            self._crew.append(_Worker(process, ours))

    def _hand_out(self) -> None:
        """Ask for all steps that have room; the slot of the step before this one is free again."""
        size = max(1, ceil(self.rows / (self.workers * _CHUNKS_PER_WORKER)))
        stop = self.step + self.ahead + 1
        stop = stop if self.last is None else min(stop, self.last)
        for step in range(self._asked, stop):
            self._missing[step] = self.rows
            for first in range(0, self.rows, size):
                worker = min(self._crew, key=lambda one: one.chunks)
                worker.chunks += 1
                self._tell(worker, _Chunk(step, first, min(first + size, self.rows)))
        self._asked = max(self._asked, stop)

    def _tell(self, worker: _Worker, chunk: _Chunk) -> None:
        try:
            worker.pipe.send(chunk)
        except OSError:
            raise self._died(worker) from None

    def _hear(self) -> None:
        ready = wait([worker.pipe for worker in self._crew], timeout=_HUNG_SECONDS)
        if not ready:
            raise RidgelineError(
                f"no image was decoded for {_HUNG_SECONDS:g} s; look at the disk that the images"
                " lie on"
            )
        for worker in self._crew:
            if worker.pipe in ready:
                try:
                    done: _Done = worker.pipe.recv()
                except (EOFError, OSError):
                    raise self._died(worker) from None
                worker.chunks -= 1
                self._take(done)

    @staticmethod
    def _died(worker: _Worker) -> Exception:
        worker.process.join(timeout=_ORPHAN_SECONDS)
        # No RidgelineError: that would end the run, and a new start may well succeed.
        return RuntimeError(f"a process that decodes images ended with {worker.process.exitcode}")

    def _take(self, done: _Done) -> None:
        chunk = done.chunk
        if self.workers:
            self._missing[chunk.step] -= chunk.stop - chunk.first
        self.rate.images += chunk.stop - chunk.first
        self.rate.seconds += done.seconds
        if done.unreadable:
            self._unreadable.setdefault(chunk.step, []).extend(done.unreadable)

    def _decoded(self, chunk: _Chunk) -> _Done:
        assert self._memory is not None
        started = perf_counter()
        slot = self._memory[chunk.step % len(self._memory)]
        unreadable = []
        for row in range(chunk.first, chunk.stop):
            try:
                slot[row] = self.decode(chunk.step, row)
            except InputError as error:
                slot[row] = 0
                unreadable.append((row, str(error)))
        return _Done(chunk, perf_counter() - started, tuple(unreadable))

    def _work(self, pipe: Connection, parent: int) -> None:
        """Decode chunks until the pipe closes or nobody is left to take them."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            while not pipe.poll(_ORPHAN_SECONDS):
                if os.getppid() != parent:
                    os._exit(0)
            try:
                pipe.send(self._decoded(pipe.recv()))
            except (EOFError, OSError):
                sys.stderr.flush()
                os._exit(0)
