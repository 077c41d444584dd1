"""Who holds memory, and does it grow from step to step?

Growth is judged by the level at the ends of profiler steps, and within them. The first of four
steps or more is left out: optimizer state, caches and workspaces appear in it. Memory *grows* when
the lowest level of every step lies above that of the step before, and the last step ends above the
first: something is kept in each step, whatever the steps need in between. It is *steady* when all
steps end within a hundredth of the highest level of each other, and *varies* otherwise, as it does
with inputs of many lengths. Fewer than three steps tell nothing.

What is kept is what a step allocated and what was still there when the last step ended; what the
last step itself allocated is left out, because a step ends with its own gradients and outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Trace
from ridgeline.trace.host_calls import best_frame, innermost_at, user_frames
from ridgeline.trace.profiler_steps import ProfilerStep, profiler_steps
from ridgeline.trace.time.steps import phase_at


class MemoryHolder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one operator at one line holds."""

    operator: str | None
    line: str | None
    phase: str
    """The phase of the step when it was allocated: data, forward, backward, optimizer, other."""
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


LEAST_STEPS = 3
_STEADY_SHARE = 0.01


class StepMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Allocated bytes in one profiler step."""

    number: int
    end_bytes: int
    lowest_bytes: int
    highest_bytes: int


class MemoryGrowth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to memory from step to step."""

    verdict: Literal["grows", "steady", "varies", "unknown"]
    sentence: str
    bytes_per_step: float | None
    """Slope of the line through the ends of the steps; None below three."""
    steps: list[StepMemory]
    kept: list[MemoryHolder]
    """Allocated in a step and never freed, by place; where memory grows."""
    steps_until_full: float | None
    """At this rate, from the highest level on; where it grows and the GPU's memory is known."""


def memory_growth(
    trace: Trace, rows: Ints, levels: Ints, *, capacity_bytes: int | None = None, top: int = 20
) -> MemoryGrowth:
    """Judge one device by its memory events in order, and what is allocated before and after each.

    `levels` has one entry more than `rows`: the level before the first event. In a trace without
    totals that is 0, and all levels are relative to it.
    """
    found = profiler_steps(trace)
    steps = _steps(found, trace.memory.time_us[rows], levels)
    settled = steps[1:] if len(steps) > LEAST_STEPS else steps
    if len(settled) < LEAST_STEPS:
        return MemoryGrowth(
            verdict="unknown",
            sentence=f"growth cannot be told from {len(steps)} profiler "
            f"step{'' if len(steps) == 1 else 's'}: it takes {LEAST_STEPS}",
            bytes_per_step=None, steps=steps, kept=[], steps_until_full=None,
        )  # fmt: skip
    ends = np.array([step.end_bytes for step in settled], np.float64)
    lows = np.array([step.lowest_bytes for step in settled], np.float64)
    slope = float(np.polyfit(np.arange(len(ends)), ends, 1)[0])
    grows = bool((np.diff(lows) > 0).all()) and ends[-1] > ends[0]
    spread = float(ends.max() - ends.min())
    highest = max(step.highest_bytes for step in settled)
    steady = spread <= _STEADY_SHARE * highest
    kept = _kept(trace, rows, found[-len(settled) :])[:top] if grows else []
    until = None
    if grows and slope > 0 and capacity_bytes:
        until = max(0.0, (capacity_bytes - highest) / slope)
    return MemoryGrowth(
        verdict="grows" if grows else "steady" if steady else "varies",
        sentence=_growing(settled, slope, kept, until) if grows else _level(ends, steady=steady),
        bytes_per_step=slope,
        steps=steps,
        kept=kept,
        steps_until_full=until,
    )


def _steps(found: Sequence[ProfilerStep], times: Floats, levels: Ints) -> list[StepMemory]:
    steps = []
    for place, step in enumerate(found):
        end_us = found[place + 1].start_us if place + 1 < len(found) else step.end_us
        first, last = np.searchsorted(times, [step.start_us, end_us], "right")
        within = levels[first : last + 1]
        steps.append(
            StepMemory(
                number=step.number,
                end_bytes=int(within[-1]),
                lowest_bytes=int(within.min()),
                highest_bytes=int(within.max()),
            )
        )
    return steps


def _kept(trace: Trace, rows: Ints, settled: Sequence[ProfilerStep]) -> list[MemoryHolder]:
    times = trace.memory.time_us[rows]
    live = live_after(trace, rows[times < settled[-1].end_us])
    born = trace.memory.time_us[live]
    inside = (born >= settled[0].start_us) & (born < settled[-1].start_us)
    return holders(trace, live[inside])


def _growing(
    settled: Sequence[StepMemory], slope: float, kept: Sequence[MemoryHolder], until: float | None
) -> str:
    first, last = settled[0], settled[-1]
    text = (
        f"grows by {bytes_text(slope)} a step: its lowest level rises in each of {len(settled)} "
        f"steps, from {bytes_text(first.lowest_bytes)} to {bytes_text(last.lowest_bytes)}"
    )
    if kept:
        most = kept[0]
        place = " at ".join(part for part in (most.operator, most.line) if part)
        text += (
            f"; most is kept from {place or 'outside of any operator'} ({most.phase}): "
            f"{most.allocations} allocations, {bytes_text(most.bytes)}"
        )
    if until is not None:
        text += f"; the GPU is full after {until:,.0f} more such steps"
    return text


def _level(ends: Floats, *, steady: bool) -> str:
    low, high = bytes_text(float(ends.min())), bytes_text(float(ends.max()))
    if not steady:
        return f"does not grow steadily: {len(ends)} steps end between {low} and {high}"
    if ends.min() == ends.max():
        return f"does not grow: all {len(ends)} steps end at {high}"
    spread = bytes_text(float(ends.max() - ends.min()))
    return f"does not grow: {len(ends)} steps end at up to {high}, within {spread} of each other"


def bytes_text(size: float) -> str:
    """A number of bytes as people read it, in powers of 1000.

    >>> bytes_text(512), bytes_text(1_234_567), bytes_text(81e9)
    ('512 B', '1.23 MB', '81.0 GB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(size) >= unit:
            value = size / unit
            return f"{value:.{2 if abs(value) < 10 else 1}f} {name}"
    return f"{size:.0f} B"
