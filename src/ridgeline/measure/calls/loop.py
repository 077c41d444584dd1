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
from contextlib import contextmanager
from dataclasses import dataclass

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
        period_seconds: From one start to the next; a call that is late begins at once, and the
            starts that it slept through are left out, as a camera drops frames. None: a closed
            loop.
    """
    samples: list[CallSample] = []
    with _collections() as collecting:
        begun = due = time.perf_counter()
        while len(samples) < most and (
            len(samples) < least or time.perf_counter() - begun < seconds
        ):
            if period_seconds is not None:
                _wait_until(due)
            sample = _one(call, collecting, None if period_seconds is None else due, period_seconds)
            samples.append(sample)
            if period_seconds is not None:
                behind = max(0.0, time.perf_counter() - due)
                due += period_seconds * max(1, -int(-behind // period_seconds))
    return samples


def _one(
    call: Callable[[], object],
    collecting: list[float],
    due: float | None,
    period_seconds: float | None,
) -> CallSample:
    before, collected = _usage(), collecting[0]
    started = time.perf_counter()
    call()
    ended = time.perf_counter()
    after = _usage()
    missed = due is not None and period_seconds is not None and ended > due + period_seconds
    return CallSample(
        seconds=ended - started,
        missed=missed,
        page_faults=int(after[0] - before[0]),
        kernel_seconds=after[1] - before[1],
        preemptions=int(after[2] - before[2]),
        gc_seconds=collecting[0] - collected,
        hertz=_hertz(),
    )


def _wait_until(due: float) -> None:
    """Sleep, as a process that waits for a frame does."""
    left = due - time.perf_counter()
    if left > 0:
        time.sleep(left)


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
