"""Calls that initialise something and do not come again, and allocators that keep nothing.

Start-up is what a steady step does not do: modules and streams, memory that is asked for once, and
kernels that are loaded by their first launch; in a program that is not PyTorch's also what comes
before the call that makes the context, when CUDA is loaded. Memory that is asked for and given back
all the time is none: its allocator is switched off, or memory is full.
"""

from __future__ import annotations

import re

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Ints, Kind, Mask, Trace
from ridgeline.trace.held_calls import LONG_LAUNCH_US, launches_into_full_queues
from ridgeline.trace.host_calls import innermost_at, launch_rows, names_matching
from ridgeline.trace.intervals import Intervals, union
from ridgeline.trace.recorded import seen_by_torch
from ridgeline.trace.sorting import among, counted, distinct, first_places, median

ALLOCATOR = re.compile(
    r"^(cuda|hip)(Host|Mem)?(Malloc|Free|Alloc)|^(cu|hip)Mem(Alloc|Free|Create|Map|AddressReserve)"
    r"|^urUSM\w*(Alloc|Free)|^zeMem(Alloc|Free)"
)
_FREE = re.compile(r"^(cuda|hip)(Host|Mem)?Free|^(cu|ze)MemFree|^urUSMFree")
_NEVER_START_UP = re.compile(r"Synchronize|Memcpy|Memset|Wait|Finish|GraphLaunch|Query")
_START_UP_US = 1000.0
"""A shorter call starts nothing, unless it is the first launch of a kernel."""
_MAKES_A_CONTEXT = 100.0
"""So many times what an allocator's calls usually take is not spent on memory."""
_PARTS = 5
"""What comes in all but one of so many parts of the time comes throughout."""
_MAKES_READY = re.compile(
    r"^(cu|hip)(Init|Ctx(Create|SetFlags)|DevicePrimaryCtx|DeviceGet|DriverGet)"
)
"""Calls of the driver that come before the one that makes the context (which CUPTI does not record
where a program asks for the primary one), and set nothing going."""
_LOADS_US = 10_000.0
"""The very first call makes the context where it takes so long."""
_FREED = 0.3
"""So many frees for each allocation are an allocator that keeps nothing."""


def first_calls(trace: Trace) -> Ints:
    """Rows of calls that initialise something and do not come again.

    Allocation, modules, streams, graphs, from a millisecond on. A launch belongs to them when it is
    the first one of its kernel, which is loaded then, and takes longer than launches do that have
    nothing to load and no full queue before them (`LONG_LAUNCH_US`). Memory that is allocated and
    freed throughout the trace is no start: its allocator keeps nothing, or has to give back what
    it keeps.
    """
    return trace.derived("first_calls", _first_calls)


def start_up_times(trace: Trace, thread: int | None = None) -> Intervals:
    """When `first_calls` ran and CUDA was loaded before them: on one thread, or on any."""
    host, rows = trace.host, first_calls(trace)
    first, since_us = trace.derived("loading", _loading)
    silent = trace.derived("silent_start", _silent_start)
    if thread is not None:
        rows = rows[host.thread[rows] == thread]
        first = first[host.thread[first] == thread]
        silent = silent[host.thread[silent[:, 0]] == thread]
    starts = (host.start_us[rows], np.full(len(first), since_us), host.ends_of(silent[:, 0]))
    ends = (host.ends_of(rows), host.start_us[first], host.start_us[silent[:, 1]])
    return union(np.concatenate(starts), np.concatenate(ends))


def starts_unseen(trace: Trace) -> bool:
    """Is a context taken for made where no call shows it?"""
    return len(trace.derived("silent_start", _silent_start)) > 0


def starts_by_name(trace: Trace) -> list[tuple[str, float]]:
    """What starts before the last work of the GPU, and for how many µs, the longest first."""
    host, rows = trace.host, first_calls(trace)
    last = float(trace.gpu.end_us.max()) if len(trace.gpu) else np.inf
    found = [
        (trace.names[host.name[row]], float(host.duration_us[row]))
        for row in rows[host.start_us[rows] < last].tolist()
    ]
    found += [
        (f"a context after {trace.names[host.name[ready]]}",
         float(host.start_us[following] - host.ends_of(ready)))
        for ready, following in trace.derived("silent_start", _silent_start).tolist()
    ]  # fmt: skip
    return sorted(found, key=lambda one: -one[1])


def _loading(trace: Trace) -> tuple[Ints, float]:
    """The call that makes the context, if there is one, and since when CUDA was loaded for it.

    That is since the innermost range around it began: a profiler starts with CUDA, and shows the
    call only when both are there. Operators and frames would tell what came before.
    """
    host, none = trace.host, (np.zeros(0, np.int64), 0.0)
    long = first_calls(trace)
    long = long[host.duration_us[long] >= _LOADS_US]
    if not len(long) or seen_by_torch(trace):
        return none
    first = long[np.argmin(host.start_us[long])]
    if host.duration_us[host.is_call & (host.start_us < host.start_us[first])].sum() > _START_UP_US:
        return none
    started = np.array([host.start_us[first]])
    ranges = host.category == Category.ANNOTATION
    around = int(innermost_at(trace, host.thread[[first]].astype(np.int64), started, ranges)[0])
    return none if around == ABSENT else (np.array([first]), float(host.start_us[around]))


def _silent_start(trace: Trace) -> Ints:
    """The two calls between which a context was made that no call shows; a row, or none.

    Runtimes of OpenMP and SYCL, and Julia, ask the driver for the primary context, which nsys does
    not record: the thread that made the driver ready is silent for long, before any work.
    """
    host, gpu, none = trace.host, trace.gpu, np.zeros((0, 2), np.int64)
    ready = host.is_call & names_matching(trace, _MAKES_READY)[host.name]
    if not len(gpu) or not ready.any() or seen_by_torch(trace):
        return none
    before = host.is_call & (host.start_us < float(gpu.start_us[0]))
    calls = np.flatnonzero(before & (host.thread == host.thread[np.flatnonzero(ready)[0]]))
    calls = calls[np.argsort(host.start_us[calls], kind="stable")]
    silent_us = host.start_us[calls[1:]] - host.ends_of(calls[:-1])
    found = np.flatnonzero((silent_us >= _LOADS_US) & ready[calls[:-1]])[:1]
    return np.stack((calls[found], calls[found + 1]), axis=1)


def _first_calls(trace: Trace) -> Ints:
    host = trace.host
    if not len(host):
        return np.zeros(0, np.int64)
    never = names_matching(trace, _NEVER_START_UP)[host.name]
    long = host.is_call & ~never & (host.duration_us >= _START_UP_US)
    launches = np.zeros(len(host), bool)
    rows = launch_rows(trace)
    launches[rows[rows >= 0]] = True
    allocating = names_matching(trace, ALLOCATOR)[host.name]
    found = launches & ~never & (host.duration_us > LONG_LAUNCH_US)
    found[_launched_again(trace)] = False
    found[rows[launches_into_full_queues(trace)[0]]] = False
    if allocator_recurs(trace):
        found[_before_any_work(trace, np.flatnonzero(long & allocating))] = True
    else:
        found |= long & allocating
    others = np.flatnonzero(long & ~launches & ~allocating)
    found[others[~_throughout(trace, others)]] = True
    found[_first_of_all(trace)] = True
    return np.flatnonzero(found)


def _before_any_work(trace: Trace, rows: Ints) -> Ints:
    """Calls of the driver's allocator that made a context or a library's handle.

    They come before any work of the GPU, and take many times what the others take.
    """
    host, gpu = trace.host, trace.gpu
    if not len(gpu) or not len(rows):
        return rows[:0]
    others = host.is_call & names_matching(trace, ALLOCATOR)[host.name]
    usual_us = median(host.duration_us[others])
    before = host.start_us[rows] < float(gpu.start_us[0])
    return rows[before & (host.duration_us[rows] > _MAKES_A_CONTEXT * usual_us)]


def _first_of_all(trace: Trace) -> Ints:
    """The call of the first GPU event, where that copies or fills and is not what takes its time.

    Whatever is called first makes the context of the GPU. Empty where another call does.
    """
    host, gpu, launches = trace.host, trace.gpu, launch_rows(trace)
    none = np.zeros(0, np.int64)
    if not len(gpu) or gpu.kind[0] == Kind.KERNEL or launches[0] < 0:
        return none
    call = int(launches[0])
    length_us, before = float(host.duration_us[call]), host.start_us < host.start_us[call]
    long = length_us >= _START_UP_US and float(gpu.duration_us[0]) < 0.5 * length_us
    return none if not long or before[launches[launches >= 0]].any() else np.array([call], np.int64)


def allocates_throughout(trace: Trace) -> bool:
    """Is memory of the GPU asked for and given back all the time?"""
    return trace.derived("allocates_throughout", _allocates_throughout)


def _allocates_throughout(trace: Trace) -> bool:
    takes, frees = _takes_and_frees(trace)
    if not _frees_much(takes, frees):
        return False
    return len(distinct(_part_of(trace, frees))) >= _PARTS - 1


def gives_memory_back(trace: Trace) -> bool:
    """Does a caching allocator give its memory back, and ask for it again?

    Where memory is full: it frees what it keeps, and goes on asking for memory all the time.
    """
    return trace.derived("gives_memory_back", _gives_memory_back)


def _gives_memory_back(trace: Trace) -> bool:
    takes, frees = _takes_and_frees(trace)
    if not _frees_much(takes, frees):
        return False
    again = trace.host.start_us[takes].max() > trace.host.start_us[frees].min()
    return bool(again) and len(distinct(_part_of(trace, takes))) >= _PARTS - 1


def allocator_recurs(trace: Trace) -> bool:
    """Is the driver asked for memory of the GPU again and again, and not for a start?"""
    return allocates_throughout(trace) or gives_memory_back(trace)


def _takes_and_frees(trace: Trace) -> tuple[Ints, Ints]:
    """Rows of calls that allocate memory of the GPU, and of those that free it."""
    host = trace.host
    calls = host.is_call & names_matching(trace, ALLOCATOR)[host.name]
    frees = calls & names_matching(trace, _FREE)[host.name]
    return np.flatnonzero(calls & ~frees), np.flatnonzero(frees)


def _frees_much(takes: Ints, frees: Ints) -> bool:
    return len(takes) > 0 and len(frees) >= max(_PARTS, _FREED * len(takes))


def _launched_again(trace: Trace) -> Ints:
    """Launches of kernels all of which had been launched before."""
    launches, gpu = launch_rows(trace), trace.gpu
    known = np.flatnonzero(launches >= 0)
    order = known[np.argsort(trace.host.start_us[launches[known]], kind="stable")]
    again = np.ones(len(order), bool)
    again[first_places(gpu.name[order])] = False
    repeated, new = distinct(launches[order[again]]), launches[order[~again]]
    return repeated[~among(repeated, new)].astype(np.int64)


def _part_of(trace: Trace, rows: Ints) -> Ints:
    """In which of `_PARTS` equal parts of the host's calls each row begins."""
    host = trace.host
    calls = np.flatnonzero(host.is_call)
    start, end = float(host.start_us[calls].min()), float(host.ends_of(calls).max())
    scaled = (host.start_us[rows] - start) * (_PARTS / max(end - start, 1e-9))
    return np.minimum(scaled.astype(np.int64), _PARTS - 1)


def _throughout(trace: Trace, rows: Ints) -> Mask:
    """Which of these calls have a name that comes throughout the trace among them."""
    if not len(rows):
        return np.zeros(0, bool)
    names = trace.host.name[rows].astype(np.int64)
    seen = distinct(names * _PARTS + _part_of(trace, rows)) // _PARTS
    number, parts = counted(seen)
    return among(names, number[parts >= _PARTS - 1])
