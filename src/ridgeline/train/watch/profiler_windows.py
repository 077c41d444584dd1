"""Profiler traces of chosen steps, of every so-manieth, or of the next step after SIGUSR1.

Each rank writes `rank0-step12.pt.trace.json.gz` into one folder, which `ridgeline trace` reads as
it is. Steps that follow each other share a file. The first step of a window includes what the
profiler itself takes to start. Of the windows that come by themselves the newest few stay.
"""

from __future__ import annotations

import os
import re
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
        self,
        folder: Path,
        steps: tuple[int, ...],
        rank: int,
        device: torch.device,
        *,
        every: int = 0,
        keep: int = 1,
    ) -> None:
        """Trace these steps, counted from 0; nothing is written before the first of them.

        Args:
            folder: Where files go.
            steps: That are traced.
            rank: Of this process.
            device: Of this process.
            every: Each so-manieth step is traced too; 0: none is.
            keep: So many files of those stay, the newest.
        """
        self._folder = folder
        self._steps = frozenset(steps)
        self._every, self._keep = every, keep
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
            self._before = signal.signal(signal.SIGUSR1, self._heard)

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Run one step; it is traced if it should be."""
        if self._running is None and (self._asked or self._wanted(step)):
            self._start(step)
        if self._running is None:
            yield
            return
        try:
            # The name that torch.profiler gives to steps, by which readers find them.
            with record_function(f"ProfilerStep#{step}"):
                yield
        finally:
            if not self._wanted(step + 1):
                self._stop()

    def close(self) -> None:
        """Write what is left and give the signal back."""
        if self._running is not None:
            self._stop()
        if self._listens:
            signal.signal(signal.SIGUSR1, self._before or signal.SIG_DFL)
            self._listens = False

    def ask(self) -> None:
        """Trace the next step."""
        self._asked = True

    def _heard(self, _number: int, _frame: FrameType | None) -> None:
        self.ask()

    def _wanted(self, step: int) -> bool:
        return step in self._steps or self._regular(step)

    def _regular(self, step: int) -> bool:
        """Whether its turn comes by itself; the first steps of a run are like no others."""
        return self._every > 0 and step > 0 and step % self._every == 0

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
        if self._regular(self._first) and self._first not in self._steps:
            self._clear()

    def _clear(self) -> None:
        """Remove the oldest windows that came by themselves, those of earlier starts too."""
        found = {
            int(name[1]): path
            for path in self._folder.glob(f"rank{self._rank}-step*.pt.trace.json.gz")
            if (name := re.search(r"-step(\d+)\.", path.name))
        }
        own = sorted(step for step in found if self._regular(step) and step not in self._steps)
        for step in own[: -self._keep]:
            found[step].unlink(missing_ok=True)
