"""First and last moment of the work of host and GPU together.

It shows a GPU that is empty before its first kernel and after its last one. What profilers do
around the work, what CUDA takes to start without a step to hold it, how a host gets ahead of its
GPU, and what is put away when all is done are left out.
"""

from __future__ import annotations

import re

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Ints, Trace
from ridgeline.trace.host_calls import launch_rows, names_matching
from ridgeline.trace.intervals import clipped, covered, measure, union
from ridgeline.trace.profiler_steps import PROFILER_STEP, ProfilerStep, profiler_steps
from ridgeline.trace.sorting import distinct
from ridgeline.trace.start_up_calls import start_up_times

_PARTS = 10
_FILLING = 3.0
"""A GPU that is empty for this many times what it is idle in a step was being reached, or left."""
_AHEAD = 0.05
"""A host whose GPU waits for longer than this share of the work is not ahead of it."""
_NOTHING_BESIDE = 8.0
"""A program that starts for so many times as long as its GPU then works only starts."""
_PUTS_AWAY = re.compile(
    r"^(cuda|hip)Device(Synchronize|Reset)$|^cuCtxSynchronize$"
    r"|^(cuda|hip|cu)\w*(Free|Destroy|Unload|Unregister|Unmap|Release)"
)
"""A wait for a device that has nothing left to do, and what gives back what the work needed."""
_BY_TORCH = re.compile(r"^(enumerate\(DataLoader\)|Optimizer\.)")
"""Ranges that torch itself puts around work; what a program calls a stretch does not show any."""
_PROFILER = re.compile(
    r"^(PyTorch Profiler|Record Window End|Iteration Start: PyTorch Profiler)"
    r"|torch/(profiler|autograd/profiler)"
)
"""What the profiler writes about itself, or does while it starts and stops."""


def working_span(trace: Trace) -> tuple[float, float]:
    """First and last moment of the work of host and GPU; what profilers do around it is left out.

    Seen from the profiler steps, or without them from the threads that launch GPU work. Time before
    the first kernel counts where the host worked towards it: not where the kernel had been launched
    long before (the GPU was still at work that was not recorded), and, without steps, not what CUDA
    takes to start (unless all the rest is nothing beside it), nor where next to nothing was
    recorded but the name of a range. Nor where steps follow in which the GPU does not wait like
    that: a host that runs ahead has to get ahead first.
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

    What comes before the first step is no part of any. Where there are several steps and the last
    is the longest by what was recorded of it, the profiler stopped inside of it.
    """
    host = trace.host
    starts = [float(host.start_us[rows].min())] if len(rows) else []
    ends = [float(host.ends_of(rows).max())] if len(rows) else []
    if steps:
        starts = [steps[0].start_us]
        lengths = [step.end_us - step.start_us for step in steps]
        if not ends or len(steps) == 1 or lengths[-1] < max(lengths[:-1]):
            ends.append(steps[-1].end_us)
        else:
            ends = [min(ends[0], steps[-1].end_us)]
    return starts, ends


def _is_filling(empty_us: float, idle_us: float, work_us: float, steps: int) -> bool:
    """Is this the time before the first event, or after the last, of a host that runs ahead?

    It has to get ahead first: that takes no longer than the GPU needs for a step, and the GPU does
    not wait like that between the steps, nor for much of the time in all.
    """
    if idle_us > _AHEAD * work_us:
        return False
    return empty_us <= work_us / steps and empty_us > _FILLING * idle_us / (steps - 1)


def _works_towards(trace: Trace, start_us: float, first_us: float, *, in_steps: bool) -> bool:
    """Was most of the time before the first GPU event the host's way to its launch?

    Inside of a step everything is; without steps, what CUDA takes to start is not, nor a time of
    which nothing is known.
    """
    host = trace.host
    call = int(launch_rows(trace)[0])
    launched = first_us if call == ABSENT else min(float(host.ends_of(call)), first_us)
    known = launched - start_us
    if not in_steps:
        start_up = _start_up_us(trace, start_us, launched)
        if start_up > _NOTHING_BESIDE * (float(trace.gpu.end_us.max()) - first_us):
            return True
        known -= start_up
        known *= _is_seen(trace, start_us, launched)
    return known > 0.5 * (first_us - start_us)


def _is_seen(trace: Trace, start_us: float, end_us: float) -> bool:
    """Was something recorded in most parts of this time, other than what the program calls it?"""
    host, rows = trace.host, _of_launching_threads(trace)
    named = host.category[rows] == Category.ANNOTATION
    rows = rows[~named | names_matching(trace, _BY_TORCH)[host.name[rows]]]
    seen = union(host.start_us[rows], host.ends_of(rows))
    edges = np.linspace(start_us, end_us, _PARTS + 1)
    return bool(np.mean(covered(seen, edges[:-1], edges[1:]) > 0) > 0.5)


def _start_up_us(trace: Trace, start_us: float, end_us: float) -> float:
    """What initialising takes between two moments."""
    return measure(clipped(start_up_times(trace), start_us, end_us))


def beside_us(trace: Trace, start_us: float, end_us: float) -> float:
    """What was recorded of the threads that launch, before and after a window without steps.

    What CUDA takes to start, and what is put away at the end, are no part of `working_span`. Where
    they last longer than it does, a program of one round spends its time there.
    """
    rows = _of_launching_threads(trace, with_end=True)
    if profiler_steps(trace) or not len(rows):
        return 0.0
    host = trace.host
    before = max(0.0, start_us - float(host.start_us[rows].min()))
    return before + max(0.0, float(host.ends_of(rows).max()) - end_us)


def _of_launching_threads(trace: Trace, *, with_end: bool = False) -> Ints:
    """Host events of the threads that start GPU work, without what the profiler does itself.

    Steps do not count: the profiler stops inside of the last one, which lasts until it has. Nor
    does what is put away when all is done, unless `with_end`.
    """
    host = trace.host
    calls = launch_rows(trace)
    threads = distinct(host.thread[calls[calls != ABSENT]])
    working = np.isin(host.thread, threads) & (host.category != Category.OVERHEAD)
    working &= ~names_matching(trace, _PROFILER)[host.name]
    working &= ~names_matching(trace, PROFILER_STEP)[host.name]
    if len(trace.gpu) and not with_end:
        away = host.is_call & names_matching(trace, _PUTS_AWAY)[host.name]
        working &= ~(away & (host.start_us > float(trace.gpu.end_us.max())))
    return np.flatnonzero(working)
