"""Memory over time, from allocations (`profile_memory=True`): `memory_use(trace)`.

Each event carries its bytes (negative: freed), its address and the allocator's totals after it.
What is live at the peak is grouped by the operator, the line and the phase of the step that
allocated it; whether it grows from step to step is judged in `growth.py`.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ridgeline.trace.columns import Ints, Trace
from ridgeline.trace.memory.growth import (
    MemoryGrowth,
    MemoryHolder,
    holders,
    live_after,
    memory_growth,
)
from ridgeline.trace.windows import RankRecord

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
    live = live_after(trace, rows[: peak + 1])
    held = holders(trace, live)
    held_bytes = int(memory.bytes[live].sum())
    before = int(totals[0] - sizes[0]) if told else 0
    growth = memory_growth(
        trace,
        rows,
        np.concatenate(([before], totals if told else np.cumsum(sizes))),
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
