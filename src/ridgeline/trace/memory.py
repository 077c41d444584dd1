"""`memory_use(trace)`: memory over time, from allocations (`profile_memory=True`).

Each event carries its bytes (negative: freed), its address and the allocator's totals after it.
What is live at the peak is grouped by the operator and the line that allocated it; growth is the
line through what is allocated at the end of each profiler step.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ridgeline.trace.call_sites import best_frame, user_frames
from ridgeline.trace.columns import ABSENT, Category, Ints, Trace
from ridgeline.trace.innermost import innermost_at
from ridgeline.trace.windows import profiler_steps

CPU = 0
"""torch's `c10::DeviceType` of the host."""
_POINTS = 240
"""Of the timeline: enough for a picture."""


class MemoryHolder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one operator at one line held at the peak."""

    operator: str | None
    line: str | None
    bytes: int
    allocations: int


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory of one device over the trace."""

    device: str
    """`gpu 0`, `cpu`."""
    events: int
    allocated_bytes: int
    """All allocations added up."""
    start_bytes: int | None
    """Allocated before the first event."""
    peak_bytes: int | None
    """None where the trace has no totals."""
    peak_at_us: float | None
    reserved_at_peak_bytes: int | None
    fragmentation: float | None
    """Share of the reserved memory that is not allocated, at the peak."""
    end_bytes: int | None
    growth_bytes_per_step: float | None
    """Slope over the ends of the profiler steps; None below three steps."""
    holders: list[MemoryHolder]
    """Allocated inside the trace and live at the peak, by place."""
    before_bytes: int | None
    """Live at the peak and allocated before the trace began."""
    timeline: list[tuple[float, int, int]]
    """(µs, allocated bytes, reserved bytes), thinned to what a picture needs; peaks stay."""


class RankMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory of one rank."""

    file: str
    rank: int | None
    devices: list[DeviceMemory]
    note: str | None
    """Why there is nothing, where there is nothing."""


def memory_use(trace: Trace, *, top: int = 20) -> RankMemory:
    """Memory over time, of each device."""
    memory = trace.memory
    places = sorted(set(zip(memory.device_type.tolist(), memory.device.tolist(), strict=True)))
    devices = [
        _device(trace, kind, index, top)
        for kind, index in places
    ]  # fmt: skip
    note = None
    if not devices:
        note = "no allocation in the trace; record it with torch.profiler's profile_memory=True"
    return RankMemory(file=trace.file, rank=trace.rank, devices=devices, note=note)


def _device(trace: Trace, kind: int, index: int, top: int) -> DeviceMemory:
    memory = trace.memory
    rows = np.flatnonzero((memory.device_type == kind) & (memory.device == index))
    rows = rows[np.argsort(memory.time_us[rows], kind="stable")]
    totals, reserved = memory.allocated_bytes[rows], memory.reserved_bytes[rows]
    sizes = memory.bytes[rows]
    told = bool(np.all(totals >= 0)) and bool(np.any(totals > 0))
    peak = int(np.argmax(totals)) if told else int(np.argmax(np.cumsum(sizes)))
    live = _live_at(trace, rows, peak)
    held_bytes = int(memory.bytes[live].sum())
    fragmentation = None
    if told and reserved[peak] > 0:
        fragmentation = 1 - float(totals[peak]) / float(reserved[peak])
    return DeviceMemory(
        device="cpu" if kind == CPU else f"gpu {index}",
        events=len(rows),
        allocated_bytes=int(sizes[sizes > 0].sum()),
        start_bytes=int(totals[0] - sizes[0]) if told else None,
        peak_bytes=int(totals[peak]) if told else None,
        peak_at_us=float(memory.time_us[rows[peak]]),
        reserved_at_peak_bytes=int(reserved[peak]) if told and reserved[peak] >= 0 else None,
        fragmentation=fragmentation,
        end_bytes=int(totals[-1]) if told else None,
        growth_bytes_per_step=_growth(trace, rows) if told else None,
        holders=_holders(trace, live)[:top],
        before_bytes=max(0, int(totals[peak]) - held_bytes) if told else None,
        timeline=_timeline(trace, rows, peak),
    )


def _live_at(trace: Trace, rows: Ints, peak: int) -> Ints:
    """Rows of the allocations up to the peak that are not freed by then."""
    live: dict[int, int] = {}
    sizes, addresses = trace.memory.bytes, trace.memory.address
    for row in rows[: peak + 1].tolist():
        if sizes[row] > 0:
            live[int(addresses[row])] = row
        else:
            live.pop(int(addresses[row]), None)
    return np.array(list(live.values()), np.int64)


def _holders(trace: Trace, live: Ints) -> list[MemoryHolder]:
    host, memory = trace.host, trace.memory
    if not len(live):
        return []
    threads, moments = memory.thread[live].astype(np.int64), memory.time_us[live]
    operators = innermost_at(trace, threads, moments, host.category == Category.OPERATOR)
    frames = innermost_at(trace, threads, moments, user_frames(trace))
    held: dict[tuple[str | None, str | None], list[int]] = {}
    for row, operator, frame in zip(live, operators, frames, strict=True):
        name = None if operator == ABSENT else trace.names[host.name[operator]]
        line = None if frame == ABSENT else best_frame([trace.names[host.name[frame]]])
        held.setdefault((name, line), []).append(int(memory.bytes[row]))
    found = [
        MemoryHolder(operator=name, line=line, bytes=sum(sizes), allocations=len(sizes))
        for (name, line), sizes in held.items()
    ]
    return sorted(found, key=lambda holder: -holder.bytes)


def _growth(trace: Trace, rows: Ints) -> float | None:
    steps = profiler_steps(trace)
    if len(steps) < 3:
        return None
    times = trace.memory.time_us[rows]
    places = np.searchsorted(times, [step.end_us for step in steps], "right") - 1
    if np.any(places < 0):
        return None
    ends = trace.memory.allocated_bytes[rows][places].astype(np.float64)
    return float(np.polyfit(np.arange(len(ends)), ends, 1)[0])


def _timeline(trace: Trace, rows: Ints, peak: int) -> list[tuple[float, int, int]]:
    memory = trace.memory
    count = len(rows)
    chosen = {0, peak, count - 1, *np.linspace(0, count - 1, min(count, _POINTS)).astype(int)}
    return [
        (
            float(memory.time_us[rows[place]]),
            int(memory.allocated_bytes[rows[place]]),
            int(memory.reserved_bytes[rows[place]]),
        )
        for place in sorted(int(place) for place in chosen)
    ]
