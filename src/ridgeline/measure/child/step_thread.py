"""The thread in which a script's steps are, of all the threads that call models."""

from __future__ import annotations

import sys
import threading

_CALLS_WITHOUT_IT = 4
"""After so many calls in other threads one that lives on is taken to wait for work in vain."""


class StepThread:
    """Nobody's until it is claimed; then one thread's, until another takes over."""

    def __init__(self) -> None:
        self.has_moved = False
        """The steps went on in another thread at least once."""
        self._ident: int | None = None
        self._native: int | None = None
        """The system's number of that thread; Python's own is given again to the next one."""
        self._thread: threading.Thread | None = None
        self._elsewhere = 0
        """Calls in other threads since the latest in this one."""
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

    def called(self) -> None:
        """The thread itself has called a model."""
        self._elsewhere = 0

    def inherit(self, *, is_step: bool) -> bool:
        """Let it be the calling thread where the one before has ended, or calls no more.

        A pool's threads live on: the next work may be another's for good. False: it called a
        moment ago.

        Args:
            is_step: What is called would be a step, and the other thread is inside of none.
        """
        with self._moving:
            self._elsewhere += is_step
            waits = is_step and self._elsewhere >= _CALLS_WITHOUT_IT
            if self._thread is None or (self._thread.is_alive() and not waits):
                return False
            self.take_over()
            self._elsewhere = 0
        self.has_moved = True
        return True
