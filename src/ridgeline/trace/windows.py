"""Which part of a trace a question is about: one GPU, all of the time or its whole profiler steps.

The whole trace is the span of one GPU's work: first start to last end. The step window is
[start of the first ProfilerStep, start of the last), because only a step whose successor is in the
trace is known to be whole; with one step it is that step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.trace.columns import Category, Floats, Ints, Mask, Trace
from ridgeline.trace.intervals import Intervals, clipped, union
from ridgeline.trace.sorting import distinct

if TYPE_CHECKING:
    from ridgeline.hardware.facts import Device

WINDOWS = ("trace", "steps")
_STEP = re.compile(r"ProfilerStep\s*#(\d+)")


class RankRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The head of every record about one rank."""

    file: str
    """The file of the trace."""
    rank: int | None
    """The rank's number; None where neither the trace nor the name of its file gives one."""


class GpuRecord(RankRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The head of every record about one GPU of one rank, within one window."""

    device: int
    """The GPU, as the trace numbers it."""
    window: str
    """`trace` (first GPU start to last GPU end) or `steps` (whole profiler steps)."""
    window_us: float
    """The length of the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerStep:
    """One ProfilerStep on the host."""

    number: int
    start_us: float
    end_us: float
    thread: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One GPU of one trace within a window."""

    trace: Trace
    device: int
    start_us: float
    end_us: float
    rows: Ints
    """GPU events of the device that touch the window, by start."""
    window: str
    """Which window it is: `trace` or `steps`."""
    steps: tuple[ProfilerStep, ...]

    @property
    def window_us(self) -> float:
        """Length of the window."""
        return self.end_us - self.start_us

    @property
    def device_name(self) -> str | None:
        """What the trace calls the GPU, where it describes it."""
        names = (device.name for device in self.trace.devices if device.index == self.device)
        return next(names, None) or None

    @property
    def catalogued_device(self) -> Device | None:
        """The GPU in the catalogue of `hardware/`, where it is known there."""
        from ridgeline.hardware.catalogue import match_reported_name

        return match_reported_name(self.device_name) if self.device_name else None

    def head(self) -> dict[str, Any]:
        """The fields of `GpuRecord`, for a record about this view."""
        return {
            "file": self.trace.file,
            "rank": self.trace.rank,
            "device": self.device,
            "window": self.window,
            "window_us": self.window_us,
        }

    def set_of(self, chosen: Mask | None = None) -> Intervals:
        """When GPU events run (those of `chosen`, a mask over `trace.gpu`), inside the window."""
        rows = self.rows if chosen is None else self.rows[chosen[self.rows]]
        gpu = self.trace.gpu
        start = gpu.start_us[rows]
        return clipped(union(start, start + gpu.duration_us[rows]), self.start_us, self.end_us)

    def durations_us(self) -> Floats:
        """How long each event of `rows` runs inside the window."""
        start = self.trace.gpu.start_us[self.rows]
        end = start + self.trace.gpu.duration_us[self.rows]
        inside: Floats = np.minimum(end, self.end_us) - np.maximum(start, self.start_us)
        return inside


def profiler_steps(trace: Trace) -> tuple[ProfilerStep, ...]:
    """The ProfilerSteps that the host saw, by start; the GPU's copies of them do not count."""
    return trace.derived("profiler_steps", _profiler_steps)


def _profiler_steps(trace: Trace) -> tuple[ProfilerStep, ...]:
    host = trace.host
    numbers = {
        index: int(found[1])
        for index, name in enumerate(trace.names)
        if (found := _STEP.match(name)) is not None
    }
    if not numbers:
        return ()
    named = np.zeros(len(trace.names), bool)
    named[list(numbers)] = True
    rows = np.flatnonzero(named[host.name])
    category = host.category[rows]
    rows = rows[(category == Category.ANNOTATION) | (category == Category.OPERATOR)]
    steps = [
        ProfilerStep(
            number=numbers[int(host.name[row])],
            start_us=float(host.start_us[row]),
            end_us=float(host.start_us[row] + host.duration_us[row]),
            thread=int(host.thread[row]),
        )
        for row in rows
    ]
    return tuple(sorted(steps, key=lambda step: step.start_us))


def views(trace: Trace, window: str = "trace") -> Iterator[View]:
    """One view per GPU that did something; none for a trace without GPU events."""
    start, end = host_window(trace, window)
    gpu = trace.gpu
    end_us = gpu.end_us
    for device in distinct(gpu.device):
        rows = np.flatnonzero(gpu.device == device)
        if window == "steps":
            rows = rows[(gpu.start_us[rows] < end) & (end_us[rows] > start)]
        else:
            start, end = float(gpu.start_us[rows[0]]), float(end_us[rows].max())
        yield View(
            trace=trace,
            device=int(device),
            start_us=start,
            end_us=end,
            rows=rows,
            window=window,
            steps=profiler_steps(trace),
        )


def host_window(trace: Trace, window: str) -> tuple[float, float]:
    """The part of the host's time that a window is about: whole profiler steps, or everything.

    Raises:
        InputError: there is no such window, or no profiler step in the trace for it.
    """
    if window not in WINDOWS:
        raise InputError(f"--window {window}: there is `trace` (all of it) and `steps`")
    if window == "trace":
        return -np.inf, np.inf
    steps = profiler_steps(trace)
    if not steps:
        raise InputError(
            f"{trace.file}: no ProfilerStep in it, so there is no step window; call "
            "profiler.step() once per step when recording, or use --window trace"
        )
    return step_window(steps)


def step_window(steps: tuple[ProfilerStep, ...]) -> tuple[float, float]:
    """From the start of the first step to the start of the last: the steps known to be whole."""
    if len(steps) == 1:
        return steps[0].start_us, steps[0].end_us
    return steps[0].start_us, steps[-1].start_us


def span_us(trace: Trace) -> tuple[float, float]:
    """First start and last end of anything in the trace."""
    starts, ends = [], []
    for table in (trace.gpu, trace.host):
        if len(table):
            starts.append(float(table.start_us.min()))
            ends.append(float(table.end_us.max()))
    return (min(starts), max(ends)) if starts else (0.0, 0.0)
