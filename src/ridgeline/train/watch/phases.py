"""Where each step of this rank went: data, forward, backward, communication, optimizer, other.

Each moment belongs to the innermost phase that is open, so phases add up to the time inside them;
what a step has beyond them is `other`. On the host the clock is the wall's. On CUDA each change of
phase is an event on the current stream, so the times are the device's own: a phase in which it
waits for the host counts in full, one through which the host merely hurries ahead does not count.
They are read when `take` is called; until then watching waits for nothing.

`communication` is what is exposed, as far as a step can be seen from outside:

  - what the loop wraps in `phase("communication")`;
  - the tail of a backward pass (`watched`): from the moment when the last gradient is computed to
    the moment when DDP or FSDP2 has them all reduced.

Waits inside forward and backward (an all-gather of FSDP2 that comes late, tensor-parallel and ring
exchanges, neighbours in a pipeline) are counted where they happen: profiler windows and `ridgeline
trace overlap` tell them apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

NAMES = ("data", "forward", "backward", "communication", "optimizer")
"""What is timed; the rest of a step is `other`."""


class Phases:
    """A clock of one rank that tells its phases apart."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = perf_counter) -> None:
        """Watch the device that computes; `clock` is the host's."""
        self._cuda = device.type == "cuda"
        self._clock = clock
        self._open: list[str] = []
        self._marks: list[tuple[Any, str | None]] = []
        """Times, and what began at each; None: nothing that is timed."""
        self._paused = False
        self.moves = 0
        """Grows whenever a phase begins or ends, in evaluation too."""

    @property
    def current(self) -> str:
        """The innermost open phase; empty: none is."""
        opened = self._open[-1:]  # a copy: other threads ask
        return opened[0] if opened else ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what is inside; a phase opened in it pauses this one."""
        self._open.append(name)
        self._mark(name)
        if self._cuda:
            torch.cuda.nvtx.range_push(name)
        try:
            # By this name a profiler window shows the phase.
            with record_function(f"phase: {name}"):
                yield
        finally:
            if self._cuda:
                torch.cuda.nvtx.range_pop()
            self._open.pop()
            self._mark(self._open[-1] if self._open else None)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is inside; evaluation is no part of a step."""
        self._mark(None)
        self._paused = True
        try:
            yield
        finally:
            self._paused = False
            self._mark(self._open[-1] if self._open else None)

    def watched(self, loss: Tensor) -> Tensor:
        """The same loss; what its backward pass waits for at the end is `communication`.

        DDP and FSDP2 wait for their collectives in callbacks that the autograd engine runs, in the
        order in which they were queued, once all gradients are computed. The gradient of the loss
        is the first of a backward pass: a callback queued then runs before either of theirs. The
        phase lasts until the next one begins or ends.
        """
        if self._paused or not loss.requires_grad:
            return loss

        def queue(gradient: Tensor) -> Tensor:
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: self._mark("communication"))
            return gradient

        loss.register_hook(queue)
        return loss

    def take(self) -> dict[str, float]:
        """Seconds of each phase since the last call, summed; on CUDA waits for the device."""
        marks = self._marks
        current = marks[-1][1] if marks else None
        self._marks = []
        if current is not None:
            # A phase is open: it goes on in what is taken next.
            self._mark(current)
            marks.append(self._marks[0])
        if marks and self._cuda:
            marks[-1][0].synchronize()
        totals = dict.fromkeys(NAMES, 0.0)
        for (start, name), (end, _) in itertools.pairwise(marks):
            if name is not None:
                totals[name] = totals.get(name, 0.0) + self._between(start, end)
        return totals

    def _mark(self, name: str | None) -> None:
        self.moves += 1
        if self._paused:
            return
        if not self._cuda:
            self._marks.append((self._clock(), name))
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((event, name))

    def _between(self, start: Any, end: Any) -> float:
        return start.elapsed_time(end) / 1e3 if self._cuda else end - start
