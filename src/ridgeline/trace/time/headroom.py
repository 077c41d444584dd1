"""Which roof kernels stay below, and what they could lose of their time: `headroom(view)`.

A good kernel attains some four fifths of its roof (cuBLAS and cuDNN on large shapes, STREAM on
memory), so that much counts as attainable: a kernel at 20 % of its roof could take a quarter of its
time. Kernels of a few microseconds are left out: they never come near a roof, and what cures them
is fusion, not a better kernel.

Where shapes and device say which roof a kernel is below, that counts. Else its class does: what is
not a matmul, a convolution or attention moves memory. Of a matmul without shapes nothing is known
in a window that decodes (kernels of paged or split attention, matrix times vector): there it
multiplies few rows and reads its weights; elsewhere it computes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import Floats, Kind
from ridgeline.trace.kernel_names import KERNEL_CLASSES, KernelClass, kernel_classes
from ridgeline.trace.roofline.kernel_roofline import KernelRoofline, kernel_rooflines
from ridgeline.trace.sorting import distinct
from ridgeline.trace.time.kernels import without_overruns
from ridgeline.trace.windows import View

ATTAINABLE_PERCENT = 80.0
_LEAST_MEAN_US = 10.0
_MATRIX = (KernelClass.GEMM, KernelClass.CONVOLUTION, KernelClass.ATTENTION)
_DECODES = re.compile(r"paged_?att|decode|splitkv|split_kv|gemv|pa_fwd|kvcache", re.IGNORECASE)
"""Names of kernels that serve one new token per sequence."""
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
    """`compute` or `memory`: the side of the roof that it stays below."""
    headroom_us: float
    """What it would lose of its time at the attainable rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """What the kernels of a window could lose of their time."""

    kernels: tuple[SlowKernel, ...]
    """Those that could lose most, the largest first."""
    share: Floats
    """For each GPU event of the trace which part of its time, from 0 to 1."""
    compute_us: float
    """Time of kernels below the roof of arithmetic, whatever they attain."""
    memory_us: float
    """The same of those below the roof of memory."""
    unknown_us: float
    """The time of kernels of which neither is known."""


def headroom(view: View, *, top: int = 5) -> Headroom:
    """Every kernel of the window against its roof; nothing without shapes or a known device."""
    gpu, names = view.trace.gpu, view.trace.names
    durations = without_overruns(view)
    positions = kernel_rooflines(view, durations)
    total: Floats = np.bincount(gpu.name[view.rows], durations, len(names)).astype(np.float64)
    count = np.bincount(gpu.name[view.rows], minlength=len(names))
    classes = kernel_classes(view.trace)
    by_name = np.zeros(len(names))
    found = []
    for name, position in positions.items():
        if position.bound is None or position.attained_percent is None:
            continue
        if total[name] < _LEAST_MEAN_US * count[name]:
            continue
        by_name[name] = position.known_share * _spare(position)
        if by_name[name] > 0:
            row = int(view.rows[np.flatnonzero(gpu.name[view.rows] == name)[0]])
            found.append(
                SlowKernel(
                    name=names[name],
                    kernel_class=KERNEL_CLASSES[int(classes[row])],
                    total_us=float(total[name]),
                    attained_percent=position.attained_percent,
                    bound=position.bound,
                    headroom_us=float(total[name] * by_name[name]),
                )
            )
    found.sort(key=lambda kernel: -kernel.headroom_us)
    share = np.where(gpu.kind == Kind.KERNEL, by_name[gpu.name], 0.0)
    sides = _sides(view, positions, total)
    return Headroom(
        kernels=tuple(found[:top]),
        share=share,
        compute_us=sides["compute"],
        memory_us=sides["memory"],
        unknown_us=sides["unknown"],
    )


def _sides(view: View, positions: dict[int, KernelRoofline], total_us: Floats) -> dict[str, float]:
    """Time of kernels by the roof that they stay below."""
    trace, gpu = view.trace, view.trace.gpu
    classes = dict(zip(gpu.name.tolist(), kernel_classes(trace).tolist(), strict=True))
    kernels = gpu.name[view.rows[gpu.kind[view.rows] == Kind.KERNEL]]
    used = distinct(kernels).tolist()
    decoding = sum(total_us[name] for name in used if _DECODES.search(trace.names[name]))
    decodes = decoding > _DECODING * sum(total_us[name] for name in used)
    sides = {"compute": 0.0, "memory": 0.0, "unknown": 0.0}
    for name in used:
        kind, position = classes[name], positions.get(name)
        if kind == KernelClass.COMMUNICATION:
            continue
        if kind in _MATRIX:
            side = "unknown" if decodes else "compute"
        else:
            side = "unknown" if kind == KernelClass.OTHER else "memory"
        known = position.known_share if position and position.bound else 0.0
        if position and position.bound:
            sides[position.bound] += float(total_us[name]) * known
        sides[side] += float(total_us[name]) * (1.0 - known)
    return sides


def _spare(position: KernelRoofline) -> float:
    attained = position.attained_percent or 0.0
    return max(0.0, 1.0 - attained / ATTAINABLE_PERCENT)
