"""Where kernels stand under the roofline, by the shapes of the operators that launched them.

Whose work a kernel does is told in `kernel_work.py`. The roof is the device's dense peak of the
arithmetic and the bandwidth of its memory, from `hardware/`; a device that is not known there has
no roof, nor has fp32 whose kernel's name does not say whether it runs on tensor cores. A call
attains the least time that the roof allows over the time that it took; a kernel's figure is over
all of its calls whose shapes are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from ridgeline.trace.columns import Floats
from ridgeline.trace.kernel_work import WorkPart, work_by_kernel
from ridgeline.trace.windows import View

if TYPE_CHECKING:
    from ridgeline.hardware.facts import Device


class KernelRoofline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All calls of one kernel whose shapes are known, together."""

    known_share: float
    """Of the kernel's time: in calls whose shapes are known."""
    flops: float | None
    """None for element-wise work, which is not counted."""
    bytes: float | None
    """Least traffic: inputs once, outputs once."""
    intensity_flops_per_byte: float | None
    flops_per_second: float | None
    bytes_per_second: float | None
    arithmetic: str | None
    """`bf16`, `tf32`, …: whose peak the roof is; None where the name does not tell, or several."""
    bound: Literal["compute", "memory"] | None
    """Which roof most of the least time lies under; None without a roof."""
    attained_percent: float | None
    """Of what the roof allows: least time under it over time taken. Above 100 where a cache served
    what memory is reckoned with."""


def kernel_rooflines(view: View, durations: Floats) -> dict[int, KernelRoofline]:
    """Position of each kernel name (index into `Trace.names`) that has one."""
    found = work_by_kernel(view, durations)
    if not found:
        return {}
    names = view.trace.gpu.name[view.rows]
    total = np.bincount(names, weights=durations, minlength=len(view.trace.names))
    device = _device(view)
    return {name: _position(parts, float(total[name]), device) for name, parts in found.items()}


def _device(view: View) -> Device | None:
    from ridgeline.hardware.catalogue import match_reported_name

    name = next((d.name for d in view.trace.devices if d.index == view.device), "")
    return match_reported_name(name) if name else None


def _position(parts: list[WorkPart], total_us: float, device: Device | None) -> KernelRoofline:
    us = sum(part.us for part in parts)
    counted = [part for part in parts if part.flops is not None]
    moving = [part for part in parts if part.bytes is not None]
    both = [part for part in counted if part.bytes is not None]
    flops = sum(part.flops or 0.0 for part in counted)
    moved = sum(part.bytes or 0.0 for part in moving)
    intensity = None
    if both and sum(part.bytes or 0.0 for part in both) > 0:
        intensity = sum(p.flops or 0.0 for p in both) / sum(p.bytes or 0.0 for p in both)
    kinds = {part.arithmetic for part in parts}
    bound, percent = _under_the_roof(parts, device)
    return KernelRoofline(
        known_share=us / total_us if total_us > 0 else 0.0,
        flops=flops if counted else None,
        bytes=moved if moving else None,
        intensity_flops_per_byte=intensity,
        flops_per_second=_rate(flops, counted),
        bytes_per_second=_rate(moved, moving),
        arithmetic=kinds.pop() if len(kinds) == 1 else None,
        bound=bound,
        attained_percent=percent,
    )


def _rate(amount: float, parts: list[WorkPart]) -> float | None:
    us = sum(part.us for part in parts)
    return amount / us * 1e6 if parts and us > 0 else None


def _under_the_roof(
    parts: list[WorkPart], device: Device | None
) -> tuple[Literal["compute", "memory"] | None, float | None]:
    """The roof over most of the least time, and the share of that in the time taken."""
    if device is None:
        return None, None
    bandwidth = device.memory.bandwidth_bytes_per_second / device.chip.logical_devices
    compute_us = memory_us = taken_us = 0.0
    for part in parts:
        peak = device.peaks.get(part.arithmetic) if part.arithmetic else None
        if part.bytes is None or (part.flops and peak is None):
            continue  # a roof with one side missing bounds nothing
        if part.flops and peak:
            computing = part.flops / (peak / device.chip.logical_devices) * 1e6
        else:
            computing = 0.0
        moving = part.bytes / bandwidth * 1e6
        compute_us += computing if computing >= moving else 0.0
        memory_us += moving if moving > computing else 0.0
        taken_us += part.us
    if taken_us <= 0:
        return None, None
    bound: Literal["compute", "memory"] = "compute" if compute_us > memory_us else "memory"
    return bound, 100 * (compute_us + memory_us) / taken_us
