"""Which roof kernels stay below, and what they could lose of their time: `headroom(view)`.

A good kernel attains 70 % of the roof of arithmetic (cuBLAS and cuDNN on large shapes) or 80 % of
that of memory (STREAM), so that much counts as attainable: a kernel at 20 % of its roof could take
a quarter of its time. Kernels of a few microseconds are left out: they never come near a roof, and
what cures them is fusion, not a better kernel. A matmul of fp32 numbers without tensor cores has a
lower roof than it needs: under autocast it would have that of 16-bit numbers, and half of its
traffic. The softmax of attention that is written out moves scores that a fused attention never
writes: all of its time could go. A kernel whose shapes are known for a quarter of its time attains
as much in the rest: autograd's own calls and replayed graphs have no shapes.

Where shapes and device say which roof a kernel is below, that counts. Else its class does: what is
not a matmul, a convolution or attention moves memory. A matmul without shapes computes, but in a
window that decodes (kernels of paged or split attention, matrix times vector) it multiplies few
rows and reads its weights. Where such a window computes prompts as well, nothing is known of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.trace.columns import Floats, Kind
from ridgeline.trace.kernel_names import KERNEL_CLASSES, KernelClass, class_of_name
from ridgeline.trace.roofline.kernel_roofline import WorkPart, work_by_kernel
from ridgeline.trace.sorting import distinct
from ridgeline.trace.time.kernels import without_overruns
from ridgeline.trace.windows import View

if TYPE_CHECKING:
    from ridgeline.hardware.facts import Device

ATTAINABLE = {"compute": 0.7, "memory": 0.8}
"""The part of a roof that good kernels attain: of arithmetic less, since clocks fall under it."""
_LEAST_MEAN_US = 10.0
NEAR = 0.01
"""No roof bounds a long kernel that attains less of it: something else does, or its shapes are
others."""
_SPEAKS_FOR_ALL = 0.25
"""Calls with this part of a kernel's time say what it attains in those without shapes."""
_MATRIX = (KernelClass.GEMM, KernelClass.CONVOLUTION, KernelClass.ATTENTION)
_DECODES = re.compile(r"paged_?att|decode|splitkv|split_kv|gemv|pa_fwd|kvcache", re.IGNORECASE)
"""Names of kernels that serve one new token per sequence."""
_PROMPTS = re.compile(r"flash_fwd|fmha|prefill|context_attention|attn_fwd", re.IGNORECASE)
"""Names of kernels of attention over whole prompts."""
_TILE = re.compile(r"(?<![0-9a-z])(?:MT)?(\d{1,3})x(\d{1,3})x\d", re.IGNORECASE)
_NARROW = 16
_DECODING = 0.02
"""So much of the time in them is a window that decodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowKernel:
    """One kernel that stays below its roof."""

    name: str
    kernel_class: str
    total_us: float
    attained_percent: float
    bound: str
    """The side of the roof that it stays below, `compute` or `memory`."""
    headroom_us: float
    """What it would lose of its time at the attainable rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """What the kernels of a window could lose of their time."""

    kernels: tuple[SlowKernel, ...]
    """The kernels that could lose most, the largest loss first."""
    share: Floats
    """For each GPU event of the trace the part of its time above the attainable, from 0 to 1."""
    precision_share: Floats
    """The part that it would lose under autocast; 0 for what is no fp32 matmul."""
    compute_us: float
    """Time of kernels below the roof of arithmetic, whatever they attain."""
    memory_us: float
    """Time of kernels below the roof of memory, whatever they attain."""
    unknown_us: float
    """The time of kernels of which neither is known."""
    told_us: float
    """The part of these times that shapes tell, and not the kernels' classes."""


@dataclass(slots=True, kw_only=True)
class _Roofs:
    """The calls of one kernel whose shapes are known, against the roof (all in µs)."""

    taken: float = 0.0
    compute: float = 0.0
    """Least time of the calls that arithmetic bounds."""
    memory: float = 0.0
    """Least time of the calls that memory bounds."""
    avoidable: float = 0.0
    """The part of `memory` that a fused kernel would not move."""
    in_16_bit: float = 0.0
    """Least time of all of them under autocast."""
    below_compute: float = 0.0
    """The part of `taken` in calls that arithmetic bounds: one kernel serves many shapes."""

    @property
    def least(self) -> float:
        return self.compute + self.memory

    @property
    def attainable(self) -> float:
        moved = self.memory - self.avoidable
        return self.compute / ATTAINABLE["compute"] + moved / ATTAINABLE["memory"]

    @property
    def bound(self) -> str:
        return "compute" if self.compute > self.memory else "memory"


def headroom(view: View, *, top: int = 5) -> Headroom:
    """Every kernel of the window against its roof; nothing without shapes or a known device."""
    gpu, names = view.trace.gpu, view.trace.names
    durations = without_overruns(view)
    total: Floats = np.bincount(gpu.name[view.rows], durations, len(names)).astype(np.float64)
    count = np.bincount(gpu.name[view.rows], minlength=len(names))
    roofs = _roofs(view, durations)
    spare, precision = np.zeros(len(names)), np.zeros(len(names))
    slow = []
    for name, roof in roofs.items():
        known = min(1.0, roof.taken / total[name])
        known = 1.0 if known >= _SPEAKS_FOR_ALL else known
        precision[name] = known * max(0.0, 1.0 - roof.in_16_bit / roof.taken)
        if total[name] < _LEAST_MEAN_US * count[name]:
            continue
        spare[name] = known * max(0.0, 1.0 - roof.attainable / roof.taken)
        if spare[name] > 0:
            slow.append(_slow_kernel(names[name], float(total[name]), roof, float(spare[name])))
    slow.sort(key=lambda kernel: -kernel.headroom_us)
    kernel = gpu.kind == Kind.KERNEL
    return Headroom(
        kernels=tuple(slow[:top]),
        share=np.where(kernel, spare[gpu.name], 0.0),
        precision_share=np.where(kernel, precision[gpu.name], 0.0),
        **_sides(view, roofs, total),
    )


def _slow_kernel(name: str, total_us: float, roof: _Roofs, spare: float) -> SlowKernel:
    return SlowKernel(
        name=name,
        kernel_class=KERNEL_CLASSES[class_of_name(name)],
        total_us=total_us,
        attained_percent=100.0 * roof.least / roof.taken,
        bound=roof.bound,
        headroom_us=total_us * spare,
    )


def _roofs(view: View, durations: Floats) -> dict[int, _Roofs]:
    """The roofs of kernels by name (index into `Trace.names`), where shapes and device say."""
    device = view.catalogued_device
    if device is None:
        return {}
    found = {}
    for name, parts in work_by_kernel(view, durations).items():
        roof = _against(parts, device)
        if roof.taken > 0:
            found[name] = roof
    return found


def _against(parts: Sequence[WorkPart], device: Device) -> _Roofs:
    """The least time of calls, as they are and under autocast."""
    chips = device.chip.logical_devices
    bandwidth = device.memory.bandwidth_bytes_per_second / chips
    peaks = {dtype: rate / chips for dtype, rate in device.peaks.items()}
    half = peaks.get(device.training_dtype)
    roof = _Roofs()
    for part in parts:
        peak = peaks.get(part.dtype) if part.dtype else None
        if part.bytes is None or (part.flops and peak is None):
            continue  # a roof with one side missing bounds nothing
        computing = part.flops / peak * 1e6 if part.flops and peak else 0.0
        moving = part.bytes / bandwidth * 1e6
        roof.taken += part.us
        if computing >= moving:
            roof.compute += computing
            roof.below_compute += part.us
        else:
            roof.memory += moving
            roof.avoidable += moving if part.is_avoidable else 0.0
        if part.flops and half and part.dtype == "fp32" and half > (peak or half):
            attainable = max(
                part.flops / half * 1e6 / ATTAINABLE["compute"],
                0.5 * moving / ATTAINABLE["memory"],
            )
            roof.in_16_bit += min(part.us, attainable)
        else:
            roof.in_16_bit += part.us
    return roof


def _sides(view: View, roofs: dict[int, _Roofs], total_us: Floats) -> dict[str, float]:
    """Time of kernels by the roof that they stay below."""
    trace, gpu = view.trace, view.trace.gpu
    of_kernels = gpu.name[view.rows[gpu.kind[view.rows] == Kind.KERNEL]]
    used, count = distinct(of_kernels).tolist(), np.bincount(of_kernels)
    of_matrix = _side_of_matmuls({trace.names[name]: float(total_us[name]) for name in used})
    sides = {"compute_us": 0.0, "memory_us": 0.0, "unknown_us": 0.0, "told_us": 0.0}
    for name in used:
        kind, roof, whole = class_of_name(trace.names[name]), roofs.get(name), float(total_us[name])
        side = _side_of_class(kind, "memory_us" if _few_rows(trace.names[name]) else of_matrix)
        if kind == KernelClass.COMMUNICATION:
            continue
        known = min(whole, roof.taken) if roof else 0.0
        long = whole >= _LEAST_MEAN_US * float(count[name])
        if roof and long and roof.least < NEAR * roof.taken:
            sides["unknown_us"] += known
        elif roof:
            computing = known * roof.below_compute / roof.taken
            sides["compute_us"] += computing
            sides["memory_us"] += known - computing
            sides["told_us"] += known
        sides[side] += whole - known
    return sides


def _side_of_matmuls(total_us: dict[str, float]) -> str:
    """Which roof matmuls without shapes are below, by the attention that runs beside them."""
    whole = sum(total_us.values())
    decoding = sum(us for name, us in total_us.items() if _DECODES.search(name))
    prompts = sum(us for name, us in total_us.items()
                  if _PROMPTS.search(name) and not _DECODES.search(name))  # fmt: skip
    if decoding <= _DECODING * whole:
        return "compute_us"
    return "unknown_us" if prompts > _DECODING * whole else "memory_us"


def _few_rows(name: str) -> bool:
    """Does the name give tiles so narrow that a matmul reads its weights for few rows?"""
    found = _TILE.search(name)
    return found is not None and min(int(found[1]), int(found[2])) <= _NARROW


def _side_of_class(kind: KernelClass, of_matrix: str) -> str:
    if kind in _MATRIX:
        return of_matrix
    return "unknown_us" if kind == KernelClass.OTHER else "memory_us"
