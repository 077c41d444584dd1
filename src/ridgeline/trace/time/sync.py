"""Every wait of the host for the GPU, its line and what it costs: `sync_points(trace)`.

A sync point is a call that returns only when the GPU has: `cudaStreamSynchronize` and its kin (also
on HIP), a synchronous copy, an asynchronous copy into pageable memory. `.item()`, `.cpu()`,
`nonzero` and boolean masks end in one of them. Its cost is the host time that it blocks, and the
GPU's gap after it, while the host catches up with launching.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Trace
from ridgeline.trace.host_calls import (
    best_frame,
    innermost_at,
    launch_rows,
    names_matching,
    user_frames,
)
from ridgeline.trace.intervals import gaps, union
from ridgeline.trace.sorting import by_start, first_places
from ridgeline.trace.windows import RankRecord, host_window

_BLOCKING = re.compile(
    r"^(cuda|hip|cu|xpu|ze)\w*Synchronize|^ur(QueueFinish|EventWait)$|^(cuda|hip)Memcpy(2D|3D)?$|^hipMemcpyWithStream$"
    r"|^(cu|hip)Memcpy(DtoH|HtoD|DtoD)(_v2)?$"
)
_PAGEABLE = re.compile(r"Memcpy DtoH \(.*Pageable\)")


class HostWait(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Waits of one sort at one place."""

    call: str
    """The call that blocks."""
    operator: str | None
    """Innermost operator around it: `aten::_local_scalar_dense` is `.item()`."""
    line: str | None
    """`file.py:line function` of the user's code, where the trace has Python stacks."""
    count: int
    host_us: float
    """Time that the host was blocked."""
    longest_us: float
    gpu_gap_us: float
    """Time that the GPU then had nothing to do."""
    first_us: float
    """When the first of them began."""


class RankSync(RankRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Waits of one rank's host."""

    window: str
    window_us: float
    count: int
    host_us: float
    gpu_gap_us: float
    points: list[HostWait]
    """By place, the most expensive first."""


def sync_points(trace: Trace, window: str = "trace", *, top: int = 20) -> RankSync:
    """Every wait of the host for the GPU; one that hardly blocked is in the totals all the same."""
    rows = blocking_calls(trace)
    host = trace.host
    start = host.start_us[rows]
    low, high = host_window(trace, window)
    rows = rows[(start >= low) & (start < high)]
    after = gap_after_us(trace, rows)
    places = _places(trace, rows)
    groups: dict[tuple[str, str | None, str | None], list[int]] = {}
    for number, place in enumerate(places):
        groups.setdefault(place, []).append(number)
    points = [_point(trace, place, rows[members], after[members])
              for place, members in groups.items()]  # fmt: skip
    points.sort(key=lambda point: -(point.host_us + point.gpu_gap_us))
    return RankSync(
        file=trace.file,
        rank=trace.rank,
        window=window,
        window_us=high - low if window == "steps" else _host_span_us(trace),
        count=len(rows),
        host_us=float(host.duration_us[rows].sum()),
        gpu_gap_us=float(after.sum()),
        points=points[:top],
    )


def blocking_calls(trace: Trace) -> Ints:
    """Rows of `trace.host` that wait for the GPU, by start."""
    host = trace.host
    if not len(host):
        return np.zeros(0, np.int64)
    blocking = host.is_call & names_matching(trace, _BLOCKING)[host.name]
    pageable = np.flatnonzero(names_matching(trace, _PAGEABLE)[trace.gpu.name])
    copies = launch_rows(trace)[pageable]
    blocking[copies[copies != ABSENT]] = True
    rows = np.flatnonzero(blocking)
    # A driver call beneath a runtime call is the same wait.
    rows = rows[by_start(host.start_us[rows], host.duration_us[rows])]
    ends = np.maximum.accumulate(host.ends_of(rows)) if len(rows) else host.ends_of(rows)
    nested = np.zeros(len(rows), bool)
    same = host.thread[rows][1:] == host.thread[rows][:-1]
    nested[1:] = same & (host.ends_of(rows)[1:] <= ends[:-1])
    return rows[~nested]


def gap_after_us(trace: Trace, rows: Ints) -> Floats:
    """How long the GPU was idle around the end of each wait; one gap goes to one wait."""
    found = np.zeros(len(rows))
    gpu, host = trace.gpu, trace.host
    if not len(gpu) or not len(rows):
        return found
    busy = union(gpu.start_us, gpu.end_us)
    if not busy.size:
        return found
    free = gaps(busy, float(busy.start[0]), float(busy.end[-1]))
    if not free.size:
        return found
    ends = host.ends_of(rows)
    places = np.searchsorted(free.start, ends, "right") - 1
    inside = (places >= 0) & (free.end[places] > ends)
    # What of the gap lies after the wait began is its doing.
    began = np.maximum(free.start[places], host.start_us[rows])
    found[inside] = (free.end[places] - began)[inside]
    once = np.zeros(len(rows), bool)
    once[first_places(np.where(inside, places, -1 - np.arange(len(rows))))] = True
    found[~once] = 0.0
    return found


def _places(trace: Trace, rows: Ints) -> list[tuple[str, str | None, str | None]]:
    host = trace.host
    moments = host.start_us[rows] + host.duration_us[rows] / 2
    threads = host.thread[rows].astype(np.int64)
    operators = innermost_at(trace, threads, moments, host.category == Category.OPERATOR)
    frames = innermost_at(trace, threads, moments, user_frames(trace))
    found = []
    for row, operator, frame in zip(rows, operators, frames, strict=True):
        line = None if frame == ABSENT else best_frame([trace.names[host.name[frame]]])
        if line is None and operator != ABSENT and host.stack[operator] != ABSENT:
            line = best_frame(trace.stacks[host.stack[operator]].split(";")[::-1])
        name = None if operator == ABSENT else trace.names[host.name[operator]]
        found.append((trace.names[host.name[row]], name, line))
    return found


def _point(
    trace: Trace, place: tuple[str, str | None, str | None], rows: Ints, after: Floats
) -> HostWait:
    lengths = trace.host.duration_us[rows]
    return HostWait(
        call=place[0],
        operator=place[1],
        line=place[2],
        count=len(rows),
        host_us=float(lengths.sum()),
        longest_us=float(lengths.max()),
        gpu_gap_us=float(after.sum()),
        first_us=float(trace.host.start_us[rows].min()),
    )


def _host_span_us(trace: Trace) -> float:
    host = trace.host
    return float(host.end_us.max() - host.start_us.min()) if len(host) else 0.0
