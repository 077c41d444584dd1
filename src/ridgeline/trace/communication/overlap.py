"""How much communication and copying hides behind compute: `overlap(trace)`."""

from __future__ import annotations

import msgspec
import numpy as np

from ridgeline.trace.columns import Kind, Trace
from ridgeline.trace.intervals import intersection, measure
from ridgeline.trace.kernel_names import is_communication
from ridgeline.trace.sorting import distinct
from ridgeline.trace.windows import GpuRecord, View, views


class ExposedKernel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All communication kernels of one name."""

    name: str
    count: int
    total_us: float
    exposed_us: float


class RankOverlap(GpuRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Communication and copies against compute, on one GPU."""

    compute_us: float
    communication_us: float
    overlap_us: float
    exposed_us: float
    overlap_ratio: float | None
    """Share of communication that compute covers; None without communication."""
    exposed_share: float
    """The share of the window in which communication is exposed."""
    copy_us: float
    copy_overlap_us: float
    kernels: list[ExposedKernel]
    """By name, most exposed first."""


def overlap(trace: Trace, window: str = "trace", *, top: int = 10) -> list[RankOverlap]:
    """Communication and copies against compute, for each GPU."""
    return [_overlap_of(view, top) for view in views(trace, window)]


def _overlap_of(view: View, top: int) -> RankOverlap:
    trace = view.trace
    kernels, talks = trace.gpu.kind == Kind.KERNEL, is_communication(trace)
    compute, communication = view.set_of(kernels & ~talks), view.set_of(talks)
    copies = view.set_of(~kernels)
    shared, total = measure(intersection(compute, communication)), measure(communication)
    by_name = []
    for name in distinct(trace.gpu.name[view.rows[talks[view.rows]]]):
        mine = view.set_of(talks & (trace.gpu.name == name))
        by_name.append(
            ExposedKernel(
                name=trace.names[name],
                count=int(np.sum(trace.gpu.name[view.rows] == name)),
                total_us=measure(mine),
                exposed_us=measure(mine) - measure(intersection(mine, compute)),
            )
        )
    return RankOverlap(
        **view.head(),
        compute_us=measure(compute),
        communication_us=total,
        overlap_us=shared,
        exposed_us=total - shared,
        overlap_ratio=shared / total if total > 0 else None,
        exposed_share=(total - shared) / view.window_us if view.window_us > 0 else 0.0,
        copy_us=measure(copies),
        copy_overlap_us=measure(intersection(copies, compute)),
        kernels=sorted(by_name, key=lambda kernel: -kernel.exposed_us)[:top],
    )
