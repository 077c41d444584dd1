"""Memory over time, from allocations (`profile_memory=True`): `memory_use(trace)`.

Each event carries its bytes (negative: freed), its address and the allocator's totals after it.
What is live at the peak is grouped by the operator, the line and the phase of the step that
allocated it; whether it grows from step to step is judged in `growth.py`.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ridgeline.trace.columns import Ints, Mask, Trace
from ridgeline.trace.memory.growth import (
    MemoryGrowth,
    MemoryHolder,
    holders,
    live_after,
    memory_growth,
)
from ridgeline.trace.windows import RankRecord, host_window

CPU = 0
"""torch's `c10::DeviceType` of the host."""
_POINTS = 240
"""The points of a timeline: enough for a picture."""


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory of one device over the trace."""

    device: str
    """The device, such as `gpu 0` or `cpu`."""
    events: int
    allocated_bytes: int
    """All allocations added up."""
    start_bytes: int | None
    """Allocated before the first event."""
    peak_bytes: int | None
    """None where the trace has no totals; levels are then relative to its start."""
    peak_at_us: float | None
    reserved_at_peak_bytes: int | None
    fragmentation: float | None
    """Share of the reserved memory that is not allocated, at the peak."""
    end_bytes: int | None
    growth_bytes_per_step: float | None
    """Slope over the ends of the profiler steps; None below three steps."""
    growth: MemoryGrowth
    holders: list[MemoryHolder]
    """Allocated inside the trace and live at the peak, by place."""
    held_by_phase: dict[str, int]
    """The same bytes by the phase of the step that allocated them."""
    before_bytes: int | None
    """Live at the peak and allocated before the trace began."""
    timeline: list[tuple[float, int, int]]
    """(µs, allocated bytes, reserved bytes), thinned to what a picture needs; peaks stay."""


class RankMemory(RankRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory of one rank."""

    window: str
    """`trace` (all of it) or `steps` (whole steps); growth is judged over all steps either way."""
    devices: list[DeviceMemory]
    note: str | None
    """Why there is nothing, where there is nothing."""


def memory_use(trace: Trace, window: str = "trace", *, top: int = 20) -> RankMemory:
    """Memory over time, of each device; with the step window, what happened in whole steps."""
    memory = trace.memory
    low, high = host_window(trace, window)
    inside = (memory.time_us >= low) & (memory.time_us < high)
    kinds, indices = memory.device_type[inside].tolist(), memory.device[inside].tolist()
    devices = [
        _device(trace, kind, index, inside, top)
        for kind, index in sorted(set(zip(kinds, indices, strict=True)))
    ]
    note = None
    if not len(memory):
        note = "no allocation in the trace; record it with torch.profiler's profile_memory=True"
    elif not devices:
        note = "no allocation in the whole steps of the trace"
    return RankMemory(file=trace.file, rank=trace.rank, window=window, devices=devices, note=note)


def _device(trace: Trace, kind: int, index: int, inside: Mask, top: int) -> DeviceMemory:
    memory = trace.memory
    everything = np.flatnonzero((memory.device_type == kind) & (memory.device == index))
    everything = everything[np.argsort(memory.time_us[everything], kind="stable")]
    rows = everything[inside[everything]]
    totals, reserved = memory.allocated_bytes[rows], memory.reserved_bytes[rows]
    sizes = memory.bytes[rows]
    told = bool(np.all(totals >= 0)) and bool(np.any(totals > 0))
    peak = int(np.argmax(totals)) if told else int(np.argmax(np.cumsum(sizes)))
    live = live_after(trace, rows[: peak + 1])
    held = holders(trace, live)
    held_bytes = int(memory.bytes[live].sum())
    before = int(totals[0] - sizes[0]) if told else 0
    growth = memory_growth(
        trace,
        everything,
        _levels(trace, everything, told=told),
        capacity_bytes=_capacity(trace, index) if told and kind != CPU else None,
        top=top,
    )
    fragmentation = None
    if told and reserved[peak] > 0:
        fragmentation = 1 - float(totals[peak]) / float(reserved[peak])
    return DeviceMemory(
        device="cpu" if kind == CPU else f"gpu {index}",
        events=len(rows),
        allocated_bytes=int(sizes[sizes > 0].sum()),
        start_bytes=before if told else None,
        peak_bytes=int(totals[peak]) if told else None,
        peak_at_us=float(memory.time_us[rows[peak]]),
        reserved_at_peak_bytes=int(reserved[peak]) if told and reserved[peak] >= 0 else None,
        fragmentation=fragmentation,
        end_bytes=int(totals[-1]) if told else None,
        growth_bytes_per_step=growth.bytes_per_step,
        growth=growth,
        holders=held[:top],
        held_by_phase=_by_phase(held),
        before_bytes=max(0, int(totals[peak]) - held_bytes) if told else None,
        timeline=_timeline(trace, rows, peak),
    )


def _levels(trace: Trace, rows: Ints, *, told: bool) -> Ints:
    """Allocated bytes before the first of the events, and after each."""
    totals, sizes = trace.memory.allocated_bytes[rows], trace.memory.bytes[rows]
    after = totals if told else np.cumsum(sizes)
    return np.concatenate(([after[0] - sizes[0]], after))


def _by_phase(held: list[MemoryHolder]) -> dict[str, int]:
    phases: dict[str, int] = {}
    for holder in held:
        phases[holder.phase] = phases.get(holder.phase, 0) + holder.bytes
    return phases


def _capacity(trace: Trace, index: int) -> int | None:
    return next((device.memory_bytes for device in trace.devices if device.index == index), None)


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
