"""The thread in which a script's steps are, of all the threads that call models."""

from __future__ import annotations

import sys
import threading


class StepThread:
    """Nobody's until it is claimed; then one thread's, until another takes over."""

    def __init__(self) -> None:
        self.has_moved = False
        """The steps went on in another thread at least once."""
        self._ident: int | None = None
        self._native: int | None = None
        """The system's number of that thread; Python's own is given again to the next one."""
        self._thread: threading.Thread | None = None
        self._moving = threading.Lock()

    def is_current(self) -> bool:
        """Is it the calling thread, or nobody's yet?"""
        return self._ident is None or threading.get_ident() == self._ident

    def is_exactly_current(self) -> bool:
        """The same, and not merely a later thread that got the number of one that has ended."""
        return self._native in (None, threading.get_native_id())

    def has_ended(self) -> bool:
        """Whether the thread runs no Python code any more."""
        return self._ident not in sys._current_frames()

    def claim(self) -> None:
        """Let it be the calling thread, if it is nobody's."""
        if self._ident is None:
            self.take_over()

    def take_over(self) -> None:
        """Let it be the calling thread from here on."""
        self._ident, self._native = threading.get_ident(), threading.get_native_id()
        self._thread = threading.current_thread()

    def inherit(self) -> bool:
        """Let it be the calling thread where the one before has ended; False: it has not."""
        with self._moving:
            if self._thread is None or self._thread.is_alive():
                return False
            self.take_over()
        self.has_moved = True
        return True
