"""Which part of a trace a question is about: one GPU, all of the time or its whole profiler steps.

    trace    one GPU's work: first start to last end
    steps    [start of the first ProfilerStep, start of the last), because only a step whose
             successor is in the trace is known to be whole; with one step it is that step. Where
             there is no ProfilerStep, numbered ranges of the user's own are the steps
             (`profiler_steps.py`)
    span     the work of host and GPU together: all profiler steps, or without steps the time in
             which the threads that launch were active, and the GPU's work. It shows a GPU that is
             empty before its first kernel and after its last one, which `trace` cannot.

What bounds a run is judged on the span where it is clearly longer than the GPU's work
(`judged_window`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.trace.columns import ABSENT, Answer, Floats, Ints, Mask, Trace, rows_of_table
from ridgeline.trace.host_calls import launch_rows
from ridgeline.trace.intervals import Intervals, clipped, union
from ridgeline.trace.profiler_steps import ProfilerStep, profiler_steps, step_window
from ridgeline.trace.sorting import distinct
from ridgeline.trace.working_span import working_span

if TYPE_CHECKING:
    from ridgeline.hardware.facts import Device

WINDOWS = ("trace", "steps", "span")
_CLEARLY_LONGER = 1.1
_LONGER_BY_STEPS = 1.03
"""Steps say where work begins and ends; without them there is more doubt."""


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
    """`trace` (first GPU start to last GPU end), `steps` (whole profiler steps) or `span` (the work
    of host and GPU together)."""
    window_us: float
    """The length of the window."""


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
    """Which window it is: `trace`, `steps` or `span`."""
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

    def once(self, name: str, compute: Callable[[View], Answer]) -> Answer:
        """What `compute` makes of this view, computed once; several questions share it."""
        key = f"{name} {self.device} {self.start_us} {self.end_us} {len(self.rows)}"
        return self.trace.derived(key, lambda _: compute(self))

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


def middle_of(view: View, most: int) -> tuple[View, Ints]:
    """The middle of a window with no more than so many GPU events, and their rows in the trace.

    It has a trace of its own, with the host's events from the first launch of one of them on.
    """
    if len(view.rows) <= most:
        return view, np.arange(len(view.trace.gpu))
    trace, first = view.trace, (len(view.rows) - most) // 2
    rows = view.rows[first : first + most]
    start, end = float(trace.gpu.start_us[rows[0]]), float(trace.gpu.start_us[rows[-1]])
    launches = launch_rows(trace)[rows]
    since = float(trace.host.start_us[launches[launches != ABSENT]].min(initial=start))
    host = (trace.host.end_us > since) & (trace.host.start_us < end)
    sync = (trace.sync.end_us > since) & (trace.sync.start_us < end)
    part = replace(
        trace,
        gpu=rows_of_table(trace.gpu, rows),
        host=rows_of_table(trace.host, np.flatnonzero(host)),
        sync=rows_of_table(trace.sync, np.flatnonzero(sync)),
        _derived={},
    )
    window = "trace" if view.window == "span" else view.window
    taken = replace(
        view, trace=part, start_us=start, end_us=end, rows=np.arange(most), window=window
    )
    return taken, rows


def views(trace: Trace, window: str = "trace") -> Iterator[View]:
    """One view per GPU that did something; none for a trace without GPU events."""
    start, end = host_window(trace, window)
    gpu = trace.gpu
    end_us = gpu.end_us
    for device in distinct(gpu.device):
        rows = np.flatnonzero(gpu.device == device)
        if window == "steps":
            rows = rows[(gpu.start_us[rows] < end) & (end_us[rows] > start)]
        elif window == "trace":
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
        raise InputError(
            f"--window {window}: there is {', '.join(f'`{name}`' for name in WINDOWS)}"
        )
    if window == "trace":
        return -np.inf, np.inf
    if window == "span":
        return working_span(trace)
    steps = profiler_steps(trace)
    if not steps:
        raise InputError(
            f"{trace.file}: no ProfilerStep and no numbered iterations in it, so there is no step "
            "window; call profiler.step() once per step when recording, or use --window trace"
        )
    return step_window(steps)


def judged_window(trace: Trace) -> str:
    """The window that says what bounds the run: `span` where it is clearly longer than `trace`."""
    gpu = trace.gpu
    if not len(gpu):
        return "trace"
    start, end = working_span(trace)
    work = float(gpu.end_us.max()) - float(gpu.start_us[0])
    clearly = _LONGER_BY_STEPS if profiler_steps(trace) else _CLEARLY_LONGER
    return "span" if end - start > clearly * work else "trace"


def span_us(trace: Trace) -> tuple[float, float]:
    """First start and last end of anything in the trace."""
    starts, ends = [], []
    for table in (trace.gpu, trace.host):
        if len(table):
            starts.append(float(table.start_us.min()))
            ends.append(float(table.end_us.max()))
    return (min(starts), max(ends)) if starts else (0.0, 0.0)
