"""How late a sleeping worker wakes: the timer's slack, and cores that sleep too deeply.

The kernel may delay a timer by the thread's slack, 50 µs unless it is told otherwise (prctl(2),
PR_SET_TIMERSLACK; real-time threads have none), and a core that has nothing to do enters states
that take up to a millisecond to leave. `/dev/cpu_dma_latency` limits that for as long as a process
holds it open (the kernel's `power/pm_qos_interface`).
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

from ridgeline.errors import in_words
from ridgeline.records.realtime_run import SteadyMeasure

NAME = "wake-up"
_SET_TIMER_SLACK, _GET_TIMER_SLACK = 29, 30
"""Numbers of two requests in <sys/prctl.h>."""
_LEAST_NANOSECONDS = 1
_WAKE_MICROSECONDS = 20
"""Allows the shallow states: none at all would keep every core spinning, and hot."""


class PromptWakeUp:
    """Timers without slack in each worker, and shallow sleep for the cores."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._held: int | None = None
        self._idle = ""
        self._slack_before: dict[int, int] = {}
        self._slack_refused = ""

    def begin(self) -> None:
        """Keep the cores from deep sleep until `undo`; where they have none, there is nothing."""
        driver = self._root / "sys/devices/system/cpu/cpuidle/current_driver"
        try:
            states = driver.read_text().strip() not in {"", "none"}
        except OSError:
            states = False
        if not states:
            self._idle = "cores have no sleep states that we could limit"
            return
        try:
            self._held = os.open(self._root / "dev/cpu_dma_latency", os.O_WRONLY | os.O_CLOEXEC)
            os.write(self._held, struct.pack("i", _WAKE_MICROSECONDS))
        except OSError as error:
            self._idle = (
                f"cores may sleep deeply: /dev/cpu_dma_latency: {in_words(error)}; allow it with "
                "`chmod o+w /dev/cpu_dma_latency`"
            )
            return
        self._idle = f"cores leave sleep within {_WAKE_MICROSECONDS} µs"

    def enter(self, thread: int) -> None:
        """Take the slack from the timers of the calling thread."""
        prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
        if prctl is None:
            self._slack_refused = "this system has no timer slack"
            return
        before = prctl(_GET_TIMER_SLACK, 0, 0, 0, 0)
        if prctl(_SET_TIMER_SLACK, ctypes.c_ulong(_LEAST_NANOSECONDS), 0, 0, 0) != 0:
            self._slack_refused = f"timer slack: {os.strerror(ctypes.get_errno())}"
            return
        self._slack_before.setdefault(thread, before)

    def undo(self, thread: int) -> None:
        """Let cores sleep, and give the calling thread its slack back; others end with the run."""
        if self._held is not None:
            os.close(self._held)
            self._held = None
        before = self._slack_before.pop(thread, None)
        if before is not None and before > 0:
            ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, ctypes.c_ulong(before), 0, 0, 0)

    @property
    def measure(self) -> SteadyMeasure:
        """What holds for timers and for cores."""
        slack = self._slack_refused or "timers have no slack"
        refused = bool(self._slack_refused) or self._idle.startswith("cores may")
        return SteadyMeasure(name=NAME, granted=not refused, detail=f"{slack}; {self._idle}")
