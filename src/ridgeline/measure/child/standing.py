"""Where the script stands before its first step, for whoever waits for it.

A thread writes the line of the user's code that the main thread is on into the session's folder,
and how often a model was called, every other second, until there are steps to tell of. It reads
frames and touches nothing.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from ridgeline.measure.child.guard import guarded
from ridgeline.measure.child.sites import user_site
from ridgeline.measure.wire import Standpoint

STANDING_NAME = "standing.json"
_INTERVAL_SECONDS = 2.0


class Standing:
    """Tells until stopped; a forked child has no such thread and tells nothing."""

    def __init__(self, folder: Path, calls: Callable[[], int]) -> None:
        self._calls = calls
        self._file = folder / STANDING_NAME
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="ridgeline-standing")

    def start(self) -> None:
        """Begin to tell where the script stands."""
        self._thread.start()

    def stop(self) -> None:
        """The first step has come."""
        self._done.set()

    @guarded()
    def _run(self) -> None:
        main = threading.main_thread().ident or 0
        while not self._done.wait(_INTERVAL_SECONDS):
            frame = sys._current_frames().get(main)
            site = user_site(frame) if frame is not None else None
            del frame  # a frame that outlives its call would free its locals in this thread
            if site is not None:
                beside = self._file.with_suffix(f".{os.getpid()}")
                told = Standpoint(where=f"{site} in {site.function}", calls=self._calls())
                beside.write_bytes(msgspec.json.encode(told))
                beside.replace(self._file)
