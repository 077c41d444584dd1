"""What is allocated and not freed at a moment, and who allocated it: operator, line, phase."""

from __future__ import annotations

import msgspec
import numpy as np

from ridgeline.trace.call_sites import best_frame, user_frames
from ridgeline.trace.columns import ABSENT, Category, Ints, Trace
from ridgeline.trace.innermost import innermost_at
from ridgeline.trace.steps import phase_at


class MemoryHolder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one operator at one line holds."""

    operator: str | None
    line: str | None
    phase: str
    """Of the step, when it was allocated: data, forward, backward, optimizer, other."""
    bytes: int
    allocations: int


def live_after(trace: Trace, rows: Ints) -> Ints:
    """Rows of the allocations among `rows`, events in order, that are not freed among them.

    None where the trace has no addresses (torch 1.8): what was freed cannot be told then.
    """
    live: dict[int, int] = {}
    sizes, addresses = trace.memory.bytes, trace.memory.address
    if not addresses[rows].any():
        return np.zeros(0, np.int64)
    for row in rows.tolist():
        if sizes[row] > 0:
            live[int(addresses[row])] = row
        else:
            live.pop(int(addresses[row]), None)
    return np.array(list(live.values()), np.int64)


def holders(trace: Trace, live: Ints) -> list[MemoryHolder]:
    """Allocations by the place that made them, the largest first."""
    host, memory = trace.host, trace.memory
    if not len(live):
        return []
    threads, moments = memory.thread[live].astype(np.int64), memory.time_us[live]
    operators = innermost_at(trace, threads, moments, host.category == Category.OPERATOR)
    frames = innermost_at(trace, threads, moments, user_frames(trace))
    phases = phase_at(trace, moments)
    held: dict[tuple[str | None, str | None, str], list[int]] = {}
    for row, operator, frame, phase in zip(live, operators, frames, phases, strict=True):
        name = None if operator == ABSENT else trace.names[host.name[operator]]
        line = None if frame == ABSENT else best_frame([trace.names[host.name[frame]]])
        held.setdefault((name, line, phase), []).append(int(memory.bytes[row]))
    found = [
        MemoryHolder(
            operator=name, line=line, phase=phase, bytes=sum(sizes), allocations=len(sizes)
        )
        for (name, line, phase), sizes in held.items()
    ]
    return sorted(found, key=lambda holder: -holder.bytes)
