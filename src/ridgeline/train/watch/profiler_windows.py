"""Profiler traces of chosen steps, or of the next step after SIGUSR1.

Each rank writes `rank0-step12.pt.trace.json.gz` into one folder, which `ridgeline trace` reads as
it is. Steps that follow each other share a file. The first step of a window includes what the
profiler itself takes to start.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function


class ProfilerWindows:
    """The profiler traces of one rank."""

    def __init__(
        self, folder: Path, steps: tuple[int, ...], rank: int, device: torch.device
    ) -> None:
        """Trace these steps, counted from 0; nothing is written before the first of them."""
        self._folder = folder
        self._steps = frozenset(steps)
        self._rank = rank
        self._activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            self._activities.append(ProfilerActivity.CUDA)
        self._asked = False
        self._running: profile | None = None
        self._first = 0
        self._before: Any = None
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._before = signal.signal(signal.SIGUSR1, self._ask)

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Run one step; it is traced if it should be."""
        if self._running is None and (self._asked or step in self._steps):
            self._start(step)
        if self._running is None:
            yield
            return
        try:
            # The name that torch.profiler gives to steps, by which readers find them.
            with record_function(f"ProfilerStep#{step}"):
                yield
        finally:
            if step + 1 not in self._steps:
                self._stop()

    def close(self) -> None:
        """Write what is left and give the signal back."""
        if self._running is not None:
            self._stop()
        if self._listens:
            signal.signal(signal.SIGUSR1, self._before or signal.SIG_DFL)
            self._listens = False

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True

    def _start(self, step: int) -> None:
        self._asked = False
        self._first = step
        self._running = profile(activities=self._activities)
        self._running.start()

    def _stop(self) -> None:
        running, self._running = self._running, None
        assert running is not None
        running.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"rank{self._rank}-step{self._first}.pt.trace.json.gz"
        temporary = path.with_name(f".{path.name.removesuffix('.gz')}.{os.getpid()}.gz")
        running.export_chrome_trace(str(temporary))
        os.replace(temporary, path)
