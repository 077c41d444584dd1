"""Copies and fills by direction, with the bandwidth that they attain: `copies(trace)`.

A bandwidth is bytes / duration of a copy, for copies whose size the trace gives; over time it is
what moves within each of `BINS` parts of the window, a copy's bytes spread evenly over it. The
time of copies that no kernel runs beside is exposed.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ridgeline.trace.columns import Floats, Ints, Kind, Trace
from ridgeline.trace.sorting import quantile
from ridgeline.trace.time.copy_directions import MEMSET, direction_of, exposed_us, rows_towards
from ridgeline.trace.time.offload import Offload, offload
from ridgeline.trace.windows import GpuRecord, View, views

BINS = 50


class CopyUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All copies of one direction and kind of host memory, or all fills."""

    direction: str
    """`HtoD`, `DtoH`, `DtoD`, `PtoP`, … or `memset`; `other` where the name does not say."""
    memory: str | None
    """What the host's memory is, `pageable` or `pinned`; None where no name says."""
    count: int
    bytes: int
    """The sum over the copies whose size the trace gives."""
    sized: int
    """How many those are."""
    total_us: float
    exposed_us: float
    """While no kernel ran."""
    mean_bytes_per_second: float | None
    """Bytes over time, of the copies with a size."""
    p10_bytes_per_second: float | None
    median_bytes_per_second: float | None
    p90_bytes_per_second: float | None


class CopySeries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bandwidth of one direction over the window."""

    direction: str
    bin_us: float
    bytes_per_second: list[float]
    """One value per bin, from the start of the window on."""


class RankCopies(GpuRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The copies of one GPU."""

    copies: list[CopyUse]
    """The most time first."""
    series: list[CopySeries]
    offload: Offload | None
    """None where copies are no part of every step, or small."""


def copies(trace: Trace, window: str = "trace") -> list[RankCopies]:
    """The copies of each GPU of the trace."""
    return [_copies_of(view) for view in views(trace, window)]


def _copies_of(view: View) -> RankCopies:
    trace, gpu = view.trace, view.trace.gpu
    rows = view.rows[gpu.kind[view.rows] != Kind.KERNEL]
    groups = {
        int(name): direction_of(trace.names[name], int(kind))
        for name, kind in zip(gpu.name[rows].tolist(), gpu.kind[rows].tolist(), strict=True)
    }
    found = []
    for group in dict.fromkeys(groups.values()):
        names = [name for name, own in groups.items() if own == group]
        found.append(_use(view, group, rows[np.isin(gpu.name[rows], names)]))
    directions = dict.fromkeys(direction for direction, _ in groups.values())
    return RankCopies(
        **view.head(),
        copies=sorted(found, key=lambda use: -use.total_us),
        series=[
            _series(view, direction, rows_towards(view, direction))
            for direction in directions
            if direction != MEMSET
        ],
        offload=offload(view),
    )


def _use(view: View, group: tuple[str, str | None], rows: Ints) -> CopyUse:
    gpu = view.trace.gpu
    sizes, lengths = gpu.bytes[rows], gpu.duration_us[rows]
    sized = sizes > 0
    timed = sized & (lengths > 0)
    rates = sizes[timed] / lengths[timed] * 1e6
    return CopyUse(
        direction=group[0],
        memory=group[1],
        count=len(rows),
        bytes=int(sizes[sized].sum()),
        sized=int(sized.sum()),
        total_us=float(lengths.sum()),
        exposed_us=exposed_us(view, rows),
        mean_bytes_per_second=float(sizes[timed].sum() / lengths[timed].sum() * 1e6)
        if len(rates)
        else None,
        p10_bytes_per_second=quantile(rates, 0.1) if len(rates) else None,
        median_bytes_per_second=quantile(rates, 0.5) if len(rates) else None,
        p90_bytes_per_second=quantile(rates, 0.9) if len(rates) else None,
    )


def _series(view: View, direction: str, rows: Ints) -> CopySeries:
    gpu = view.trace.gpu
    rows = rows[gpu.bytes[rows] > 0]
    edges = np.linspace(view.start_us, view.end_us, BINS + 1)
    moved = np.diff(_moved_before(edges, gpu.start_us[rows], gpu.ends_of(rows), gpu.bytes[rows]))
    bin_us = view.window_us / BINS
    rates = moved / bin_us * 1e6 if bin_us > 0 else np.zeros(BINS)
    return CopySeries(
        direction=direction, bin_us=bin_us, bytes_per_second=np.round(rates, 1).tolist()
    )


def _moved_before(moments: Floats, start: Floats, end: Floats, size: Ints) -> Floats:
    """The bytes moved before each moment, a copy's spread evenly over it."""
    if not len(start):
        return np.zeros(len(moments))
    end = np.maximum(end, start + 1e-3)  # a copy of no time moves all at once
    rate = size / (end - start)
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    times, running = times[order], np.cumsum(np.concatenate([rate, -rate])[order])
    moved = np.concatenate([[0.0], np.cumsum(running[:-1] * np.diff(times))])
    found: Floats = np.interp(moments, times, np.maximum.accumulate(moved))
    return found
