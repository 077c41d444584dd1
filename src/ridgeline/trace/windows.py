"""Which part of a trace a question is about: one GPU, all of the time or its whole profiler steps.

    trace    one GPU's work: first start to last end
    steps    [start of the first ProfilerStep, start of the last), because only a step whose
             successor is in the trace is known to be whole; with one step it is that step. Where
             there is no ProfilerStep, numbered ranges of the user's own are the steps
             (`iterations.py`)
    span     the work of host and GPU together: all profiler steps, or without steps the time in
             which the threads that launch were active, and the GPU's work. It shows a GPU that is
             empty before its first kernel and after its last one, which `trace` cannot.

What bounds a run is judged on the span where it is clearly longer than the GPU's work
(`judged_window`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Mask, Trace, rows_of_table
from ridgeline.trace.host_calls import first_calls, launch_rows, names_matching
from ridgeline.trace.intervals import Intervals, clipped, covered, measure, union
from ridgeline.trace.iterations import iterations
from ridgeline.trace.sorting import distinct

if TYPE_CHECKING:
    from ridgeline.hardware.facts import Device

WINDOWS = ("trace", "steps", "span")
_CLEARLY_LONGER = 1.1
_LONGER_BY_STEPS = 1.03
"""Steps say where work begins and ends; without them there is more doubt."""
_PARTS = 10
_FILLING = 3.0
"""A GPU that is empty for this many times what it is idle in a step was being reached, or left."""
_STEP = re.compile(r"ProfilerStep\s*#(\d+)")
_DEVICE_WAIT = re.compile(r"^(cuda|hip)DeviceSynchronize$")
_PROFILER = re.compile(
    r"^(PyTorch Profiler|Record Window End|Iteration Start: PyTorch Profiler)"
    r"|torch/(profiler|autograd/profiler)"
)
"""What the profiler writes about itself, or does while it starts and stops."""


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
class ProfilerStep:
    """One ProfilerStep on the host, or one numbered iteration of the user's."""

    name: str
    """What it is called, with its number."""
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
        if (found := _STEP.match(name)) is not None
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


def step_window(steps: tuple[ProfilerStep, ...]) -> tuple[float, float]:
    """From the start of the first step to the start of the last: the steps known to be whole."""
    if len(steps) == 1:
        return steps[0].start_us, steps[0].end_us
    return steps[0].start_us, steps[-1].start_us


def judged_window(trace: Trace) -> str:
    """The window that says what bounds the run: `span` where it is clearly longer than `trace`."""
    gpu = trace.gpu
    if not len(gpu):
        return "trace"
    start, end = working_span(trace)
    work = float(gpu.end_us.max()) - float(gpu.start_us[0])
    clearly = _LONGER_BY_STEPS if profiler_steps(trace) else _CLEARLY_LONGER
    return "span" if end - start > clearly * work else "trace"


def working_span(trace: Trace) -> tuple[float, float]:
    """First and last moment of the work of host and GPU; what profilers do around it is left out.

    Seen from the profiler steps, or without them from the threads that launch GPU work. Time before
    the first kernel counts where the host worked towards it: not where the kernel had been launched
    long before (the GPU was still at work that was not recorded), and, without steps, not what CUDA
    takes to start, nor where next to nothing was recorded. Nor where steps follow in which the GPU
    does not wait like that: a host that runs ahead has to get ahead first.
    """
    return trace.derived("working_span", _working_span)


def _working_span(trace: Trace) -> tuple[float, float]:
    gpu = trace.gpu
    steps, rows = profiler_steps(trace), _of_launching_threads(trace)
    starts, ends = _moments_of_host(trace, steps, rows)
    if not len(gpu):
        return (min(starts), max(ends)) if starts else (0.0, 0.0)
    first, last = float(gpu.start_us.min()), float(gpu.end_us.max())
    start, end = min([first, *starts]), max([last, *ends])
    if start < first and not _works_towards(trace, start, first, in_steps=bool(steps)):
        start = first
    if len(steps) > 1:
        idle = last - first - measure(union(gpu.start_us, gpu.end_us))
        filling = _is_filling(first - start, idle, last - first, len(steps))
        if filling and _start_up_us(trace, start, first) <= 0.5 * (first - start):
            start = first
        if _is_filling(end - last, idle, last - first, len(steps)):
            end = last
    return start, end


def _moments_of_host(
    trace: Trace, steps: tuple[ProfilerStep, ...], rows: Ints
) -> tuple[list[float], list[float]]:
    """When the host began and ended, by the steps and by the events of `rows`.

    Where there are several steps and the last is the longest by what was recorded of it, the
    profiler stopped inside of it.
    """
    host = trace.host
    starts = [float(host.start_us[rows].min())] if len(rows) else []
    ends = [float(host.end_us[rows].max())] if len(rows) else []
    if steps:
        starts.append(steps[0].start_us)
        lengths = [step.end_us - step.start_us for step in steps]
        if not ends or len(steps) == 1 or lengths[-1] < max(lengths[:-1]):
            ends.append(steps[-1].end_us)
        else:
            ends = [min(ends[0], steps[-1].end_us)]
    return starts, ends


def _is_filling(empty_us: float, idle_us: float, work_us: float, steps: int) -> bool:
    """Is this the time before the first event, or after the last, of a host that runs ahead?

    It has to get ahead first: that takes no longer than the GPU needs for a step, and the GPU does
    not wait like that between the steps.
    """
    return empty_us <= work_us / steps and empty_us > _FILLING * idle_us / (steps - 1)


def _works_towards(trace: Trace, start_us: float, first_us: float, *, in_steps: bool) -> bool:
    """Was most of the time before the first GPU event the host's way to its launch?

    Inside of a step everything is; without steps, what CUDA takes to start is not, nor a time of
    which nothing is known.
    """
    host = trace.host
    call = int(launch_rows(trace)[0])
    launched = first_us if call == ABSENT else min(float(host.end_us[call]), first_us)
    known = launched - start_us
    if not in_steps:
        known -= _start_up_us(trace, start_us, launched)
        known *= _is_seen(trace, start_us, launched)
    return known > 0.5 * (first_us - start_us)


def _is_seen(trace: Trace, start_us: float, end_us: float) -> bool:
    """Was something recorded in most parts of this time?"""
    host, rows = trace.host, _of_launching_threads(trace)
    seen = union(host.start_us[rows], host.end_us[rows])
    edges = np.linspace(start_us, end_us, _PARTS + 1)
    return bool(np.mean(covered(seen, edges[:-1], edges[1:]) > 0) > 0.5)


def _start_up_us(trace: Trace, start_us: float, end_us: float) -> float:
    """What calls that initialise take between two moments."""
    host, rows = trace.host, first_calls(trace)
    return measure(clipped(union(host.start_us[rows], host.end_us[rows]), start_us, end_us))


def _of_launching_threads(trace: Trace) -> Ints:
    """Host events of the threads that start GPU work, without what the profiler does itself.

    Steps do not count: the profiler stops inside of the last one, which lasts until it has.
    """
    host = trace.host
    calls = launch_rows(trace)
    threads = distinct(host.thread[calls[calls != ABSENT]])
    working = np.isin(host.thread, threads) & (host.category != Category.OVERHEAD)
    working &= ~names_matching(trace, _PROFILER)[host.name]
    working &= ~names_matching(trace, _STEP)[host.name]
    if len(trace.gpu):  # as does a wait for a device that has nothing left to do
        stops = names_matching(trace, _DEVICE_WAIT)[host.name]
        working &= ~(stops & (host.start_us > float(trace.gpu.end_us.max())))
    return np.flatnonzero(working)


def span_us(trace: Trace) -> tuple[float, float]:
    """First start and last end of anything in the trace."""
    starts, ends = [], []
    for table in (trace.gpu, trace.host):
        if len(table):
            starts.append(float(table.start_us.min()))
            ends.append(float(table.end_us.max()))
    return (min(starts), max(ends)) if starts else (0.0, 0.0)
