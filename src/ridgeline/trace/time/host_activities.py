"""What the threads that launch GPU work did with their time, every moment with one owner.

What a thread does is nested: a synchronise inside an operator inside a frame. The first part in
this order that covers a moment takes it:

    loader          inside the iterator of its loader
    synchronise     blocked until the GPU has finished, or asking over and over whether it has
    start_up        initialising what does not come again (`start_up_calls.start_up_times`), and all
                    allocation where memory is not allocated and freed throughout
    allocator       allocating or freeing memory of the GPU
    copy            inside a call that copies and returns when the copy is done
    runtime         other calls of the runtime, launches among them
    operator        inside an operator
    python          inside a Python frame or an annotation
    untraced        nothing was recorded
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Ints, Kind, Mask, Trace
from ridgeline.trace.held_calls import blocking_copies, polls_of_thread
from ridgeline.trace.host_calls import WAIT_CALLS, launch_rows, names_matching, rows_by_start
from ridgeline.trace.intervals import NOTHING, Intervals, difference, union
from ridgeline.trace.sorting import distinct
from ridgeline.trace.start_up_calls import ALLOCATOR, allocator_recurs, start_up_times
from ridgeline.trace.time.idle import LOADER
from ridgeline.trace.waits import FRAMES

HOST_PARTS = (
    "loader", "synchronise", "start_up", "allocator", "copy", "runtime", "operator", "python",
    "untraced",
)  # fmt: skip
_BLOCK = 1 << 17
"""Events of a thread that are looked at together: of millions the masks alone are large."""
_ON_DEVICE = re.compile(r"DtoD|Device -> Device|CopyDeviceToDevice|device-to-device", re.IGNORECASE)


def launching_threads(trace: Trace) -> Ints:
    """Threads that start GPU work."""
    return trace.derived("launching_threads", _launching_threads)


def _launching_threads(trace: Trace) -> Ints:
    launches = launch_rows(trace)
    return distinct(trace.host.thread[launches[launches != ABSENT]]).astype(np.int64)


def parts_of_thread(trace: Trace, thread: int) -> dict[str, Intervals]:
    """When a thread did what; no two parts overlap, and `untraced` is left out."""
    return trace.derived(f"parts of thread {thread}", lambda t: _parts_of_thread(t, thread))


def busy_time(trace: Trace, thread: int) -> Intervals:
    """When a thread did anything that was recorded."""
    return trace.derived(f"busy time {thread}", lambda t: _busy_time(t, thread))


def _busy_time(trace: Trace, thread: int) -> Intervals:
    parts = parts_of_thread(trace, thread).values()
    return union(
        np.concatenate([part.start for part in parts]), np.concatenate([part.end for part in parts])
    )


def _parts_of_thread(trace: Trace, thread: int) -> dict[str, Intervals]:
    host, rows = trace.host, rows_by_start(trace, thread)
    pieces: dict[str, list[Intervals]] = defaultdict(list)
    for first in range(0, len(rows), _BLOCK):
        some = rows[first : first + _BLOCK]
        for name, mask in _chosen(trace, some).items():
            chosen = some[mask]
            pieces[name].append(union(host.start_us[chosen], host.ends_of(chosen)))
    found: dict[str, Intervals] = {}
    taken = NOTHING
    for name, parts in pieces.items():
        times = union(
            np.concatenate([part.start for part in parts]),
            np.concatenate([part.end for part in parts]),
        )
        if name == "synchronise":
            asked = polls_of_thread(trace, thread)
            times = _joined(times, union(asked.begin_us, asked.end_us))
        if name == "start_up":
            times = _joined(times, start_up_times(trace, thread))
        found[name] = difference(times, taken)
        taken = _joined(taken, times)
    return found


def _chosen(trace: Trace, rows: Ints) -> dict[str, Mask]:
    """Which events of a thread belong to which part, were they not nested."""
    host = trace.host
    call, names, category = host.is_call[rows], host.name[rows], host.category[rows]
    framing = names_matching(trace, FRAMES)[names]
    allocating = call & names_matching(trace, ALLOCATOR)[names]
    blocking = np.zeros(len(host), bool)
    blocking[blocking_copies(trace)] = True
    return {
        "loader": names_matching(trace, LOADER)[names],
        "synchronise": call & names_matching(trace, WAIT_CALLS)[names],
        "start_up": allocating & (not allocator_recurs(trace)),
        "allocator": allocating,
        "copy": blocking[rows],
        "runtime": call,
        "operator": (category == Category.OPERATOR) & ~framing,
        "python": (category == Category.PYTHON) | (category == Category.ANNOTATION) | framing,
    }


def _joined(one: Intervals, other: Intervals) -> Intervals:
    if not one.size or not other.size:
        return one if one.size else other
    return union(np.concatenate((one.start, other.start)), np.concatenate((one.end, other.end)))


def over_a_link(trace: Trace) -> Mask:
    """Which GPU events copy to or from the host, or another GPU.

    A copy inside of one GPU's memory is work of that GPU like any kernel.
    """
    inside = names_matching(trace, _ON_DEVICE)[trace.gpu.name]
    found: Mask = (trace.gpu.kind == Kind.MEMCPY) & ~inside
    return found
