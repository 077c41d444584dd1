"""The steps that the host saw: ProfilerSteps, or the ranges by which users number their turns."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import Category, Ints, Trace
from ridgeline.trace.iterations import iterations

PROFILER_STEP = re.compile(r"ProfilerStep\s*#(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerStep:
    """One ProfilerStep on the host, or one numbered iteration of the user's."""

    name: str
    """What it is called, with its number."""
    number: int
    start_us: float
    end_us: float
    thread: int


def profiler_steps(trace: Trace) -> tuple[ProfilerStep, ...]:
    """The steps that the host saw, by start: ProfilerSteps, else the user's numbered iterations.

    The GPU's copies of them do not count.
    """
    return trace.derived("profiler_steps", _profiler_steps)


def _profiler_steps(trace: Trace) -> tuple[ProfilerStep, ...]:
    host = trace.host
    numbers = {
        index: int(found[1])
        for index, name in enumerate(trace.names)
        if (found := PROFILER_STEP.match(name)) is not None
    }
    if not numbers:
        rows, turns = iterations(trace)
        return _as_steps(trace, rows, turns.tolist())
    named = np.zeros(len(trace.names), bool)
    named[list(numbers)] = True
    rows = np.flatnonzero(named[host.name])
    category = host.category[rows]
    rows = rows[(category == Category.ANNOTATION) | (category == Category.OPERATOR)]
    return _as_steps(trace, rows, [numbers[name] for name in host.name[rows].tolist()])


def _as_steps(trace: Trace, rows: Ints, numbers: list[int]) -> tuple[ProfilerStep, ...]:
    host = trace.host
    steps = [
        ProfilerStep(
            name=trace.names[host.name[row]],
            number=number,
            start_us=float(host.start_us[row]),
            end_us=float(host.start_us[row] + host.duration_us[row]),
            thread=int(host.thread[row]),
        )
        for row, number in zip(rows.tolist(), numbers, strict=True)
    ]
    return tuple(sorted(steps, key=lambda step: step.start_us))


def step_window(steps: tuple[ProfilerStep, ...]) -> tuple[float, float]:
    """From the start of the first step to the start of the last: the steps known to be whole."""
    if len(steps) == 1:
        return steps[0].start_us, steps[0].end_us
    return steps[0].start_us, steps[-1].start_us
