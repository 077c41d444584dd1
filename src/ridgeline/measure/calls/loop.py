"""Call a function again and again, and note what the process went through during each call.

The counters are read outside of the timed span: `getrusage` of the whole process, since a runtime
computes in threads of its own; the clock of the core where the system tells it.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Self

_FREQUENCY = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSample:
    """One call, and what happened beside it."""

    seconds: float
    missed: bool = False
    """It had not ended when the next one was due."""
    page_faults: int = 0
    kernel_seconds: float = 0.0
    preemptions: int = 0
    """Involuntary context switches of all threads."""
    gc_seconds: float = 0.0
    hertz: float | None = None
    """Clock of the core just after the call; None: the system does not tell."""


class CallMeter:
    """Reads what one process goes through from `begin` to `end`; enter it around many calls."""

    def __init__(self) -> None:
        self._collecting = [0.0]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._collecting = self._stack.enter_context(_collections())
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def begin(self) -> None:
        """A call begins now."""
        self._before, self._collected = _usage(), self._collecting[0]
        self._started = time.perf_counter()

    def end(self, late_at: float | None = None) -> CallSample:
        """The call has ended; `late_at` is when the next one was due, on `perf_counter`'s clock."""
        ended = time.perf_counter()
        after, before = _usage(), self._before
        return CallSample(
            seconds=ended - self._started,
            missed=late_at is not None and ended > late_at,
            page_faults=int(after[0] - before[0]),
            kernel_seconds=after[1] - before[1],
            preemptions=int(after[2] - before[2]),
            gc_seconds=self._collecting[0] - self._collected,
            hertz=_hertz(),
        )


class Timetable:
    """When calls at a period are due.

    The starts that a late call slept through are left out, as a camera drops frames.
    """

    def __init__(self, period_seconds: float) -> None:
        self._period_seconds = period_seconds
        self._due = time.perf_counter()

    @property
    def late_at(self) -> float:
        """When the call after the one at hand is due."""
        return self._due + self._period_seconds

    def wait(self) -> None:
        """Sleep until the next call is due, as a process that waits for a frame does."""
        behind = max(0.0, time.perf_counter() - self._due)
        self._due += self._period_seconds * max(1, -int(-behind // self._period_seconds))
        left = self._due - time.perf_counter()
        if left > 0:
            time.sleep(left)


def time_calls(
    call: Callable[[], object],
    *,
    seconds: float,
    least: int,
    most: int,
    period_seconds: float | None = None,
) -> list[CallSample]:
    """Time calls for so long, but at least and at most so many.

    Args:
        call: Computes one answer, and waits for it.
        seconds: How long to go on.
        least: Calls that are made however long they take.
        most: Calls after which it ends.
        period_seconds: From one start to the next; None: a closed loop.
    """
    samples: list[CallSample] = []
    timetable = None if period_seconds is None else Timetable(period_seconds)
    with CallMeter() as meter:
        begun = time.perf_counter()
        while len(samples) < most and (
            len(samples) < least or time.perf_counter() - begun < seconds
        ):
            if timetable is not None and samples:
                timetable.wait()
            meter.begin()
            call()
            samples.append(meter.end(None if timetable is None else timetable.late_at))
    return samples


def _usage() -> tuple[float, float, float]:
    """Page faults, seconds in the kernel, and involuntary context switches so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt + used.ru_majflt, used.ru_stime, used.ru_nivcsw


def _hertz() -> float | None:
    try:
        with open(
            _FREQUENCY.format(os.sched_getcpu() if hasattr(os, "sched_getcpu") else 0)
        ) as file:
            return float(file.read()) * 1e3
    except (OSError, ValueError):
        return None  # a virtual machine, or not Linux


@contextmanager
def _collections() -> Iterator[list[float]]:
    """Within, the first entry of the list is the seconds of Python's collections so far."""
    spent, started = [0.0], [0.0]

    def watch(phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            started[0] = time.perf_counter()
        else:
            spent[0] += time.perf_counter() - started[0]

    gc.callbacks.append(watch)
    try:
        yield spent
    finally:
        gc.callbacks.remove(watch)
