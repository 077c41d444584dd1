"""Ctrl-C in a run: the first ends it after the frames in flight, the second at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class EndRequest:
    """Whether a run was told to end: a plain flag, as the handler of a signal may not wait."""

    def __init__(self) -> None:
        self.came = False
        self.interrupted = False
        """Whether it was Ctrl-C that came."""
        self.reason = ""
        """For the notes of the run; empty: it ended by itself."""

    def ask(self, reason: str) -> None:
        """End the run after the frames in flight."""
        self.came = True
        self.reason = self.reason or reason

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """Take Ctrl-C as such a request inside the block; in the main thread alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def handle(number: int, frame: FrameType | None) -> None:
            if self.came:
                signal.default_int_handler(number, frame)
            self.interrupted = True
            self.ask("interrupted by Ctrl-C")

        signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
