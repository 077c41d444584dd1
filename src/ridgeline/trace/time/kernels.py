"""GPU time by kernel and by class, tensor cores, occupancy, launch delay: `kernel_use(trace)`.

SM efficiency is ∫ min(1, blocks per SM of all that runs) / window, which for kernels one after the
other is torch_tb_profiler's Σ duration · min(1, blocks per SM) / window; kernels side by side fill
an SM once. Occupancy is the mean of Kineto's `est. achieved occupancy %` weighted by duration. Both
are estimates, since a trace has no hardware counters. An event that runs into the next one of its
stream counts up to there. A kernel's position under the roofline is there when the trace has the
shapes of operators and was loaded with `details` (`kernel_roofline.py`).
"""

from __future__ import annotations

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Floats, Ints, Kind, Trace
from ridgeline.trace.host_calls import launch_start_us
from ridgeline.trace.kernel_names import (
    KERNEL_CLASSES,
    MATRIX,
    KernelClass,
    kernel_classes,
    on_tensor_cores,
)
from ridgeline.trace.roofline.kernel_roofline import KernelRoofline, kernel_rooflines
from ridgeline.trace.sorting import distinct, median, quantile
from ridgeline.trace.windows import GpuRecord, View, views

_NAMED = 5
"""So many of the kernels that nobody knows are named."""


class KernelUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All events of one name."""

    name: str
    kernel_class: str
    count: int
    total_us: float
    share: float
    """The share of the time of all GPU events."""
    mean_us: float
    min_us: float
    median_us: float
    p90_us: float
    p99_us: float
    max_us: float
    tensor_cores: bool | None
    """Does the name say so? An estimate; None where it says neither yes nor no."""
    occupancy_percent: float | None
    blocks_per_sm: float | None
    launch_delay_us: float | None
    """Median from the start of the launch call to the start on the GPU."""
    roofline: KernelRoofline | None
    """None where no operator with known shapes launched it."""


class ClassUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All events of one class."""

    name: str
    count: int
    total_us: float
    share: float


class RankKernels(GpuRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the GPU of one rank ran."""

    events: int
    total_us: float
    """Sum over events; streams that run side by side count twice."""
    classes: list[ClassUse]
    kernels: list[KernelUse]
    """The most expensive kernels, by name."""
    names: int
    """How many different names there are."""
    unknown_share: float
    """The share of the time of all kernels in those whose names say nothing (class `other`)."""
    unknown_names: list[str]
    """The longest of them."""
    tensor_core_share: float | None
    """The part on tensor cores of the time of GEMMs, convolutions and attention whose names say
    whether they are; None where no name does."""
    tensor_core_unknown_share: float | None
    """The part of that time whose names do not say; None without such kernels."""
    sm_efficiency: float | None
    """Estimate; None where the trace has no `blocks per SM` and no grids."""
    occupancy_percent: float | None
    """Estimate; None where the trace does not say."""
    under_5us_share: float
    """The share of kernels, by count."""


def kernel_use(
    trace: Trace, window: str = "trace", *, top: int = 30, roofline: bool = True
) -> list[RankKernels]:
    """What each GPU of the trace ran; without `roofline` in half of the time."""
    return [_kernels_of(view, top, roofline=roofline) for view in views(trace, window)]


def _kernels_of(view: View, top: int, *, roofline: bool) -> RankKernels:
    trace, gpu, rows = view.trace, view.trace.gpu, view.rows
    durations = without_overruns(view)
    total = float(durations.sum())
    classes = kernel_classes(trace)[rows]
    by_class = np.bincount(classes, weights=durations, minlength=len(KERNEL_CLASSES))
    counts = np.bincount(classes, minlength=len(KERNEL_CLASSES))
    kernels = gpu.kind[rows] == Kind.KERNEL
    used = distinct(gpu.name[rows])
    places = np.searchsorted(used, gpu.name[rows])
    sums = np.bincount(places, weights=durations, minlength=len(used))
    most = np.argsort(-sums, kind="stable")[:top]
    nobody_s = kernels & (classes == KernelClass.OTHER)
    unknown = np.bincount(places, weights=durations * nobody_s, minlength=len(used))
    on_cores, unsaid = _tensor_core_shares(view, durations)
    positions = kernel_rooflines(view, durations) if roofline else {}
    return RankKernels(
        **view.head(),
        events=len(rows),
        total_us=total,
        classes=[
            ClassUse(
                name=KERNEL_CLASSES[number],
                count=int(counts[number]),
                total_us=float(by_class[number]),
                share=_share(by_class[number], total),
            )
            for number in np.argsort(-by_class, kind="stable")
            if counts[number]
        ],
        kernels=[
            _use(
                view,
                np.flatnonzero(places == number),
                durations,
                total,
                positions.get(int(used[number])),
            )
            for number in most
        ],
        names=len(used),
        unknown_share=_share(unknown.sum(), float(durations[kernels].sum())),
        unknown_names=[
            trace.names[used[number]]
            for number in np.argsort(-unknown, kind="stable")[:_NAMED]
            if unknown[number] > 0
        ],
        tensor_core_share=on_cores,
        tensor_core_unknown_share=unsaid,
        sm_efficiency=sm_efficiency(view, durations),
        occupancy_percent=weighted(gpu.occupancy_percent[rows], durations),
        under_5us_share=float(np.mean(gpu.duration_us[rows][kernels] < 5))
        if kernels.any()
        else 0.0,
    )


def _use(
    view: View, members: Ints, durations: Floats, total: float, position: KernelRoofline | None
) -> KernelUse:
    """All events of one name, which are the `members` of the view's rows."""
    trace, gpu = view.trace, view.trace.gpu
    rows, times = view.rows[members], durations[members]
    name = int(gpu.name[rows[0]])
    delay = gpu.start_us[rows] - launch_start_us(trace)[rows]
    known = delay[~np.isnan(delay)]
    return KernelUse(
        name=trace.names[name],
        kernel_class=KERNEL_CLASSES[int(kernel_classes(trace)[rows[0]])],
        count=len(rows),
        total_us=float(times.sum()),
        share=_share(times.sum(), total),
        mean_us=float(times.mean()),
        min_us=float(times.min()),
        median_us=median(times),
        p90_us=quantile(times, 0.9),
        p99_us=quantile(times, 0.99),
        max_us=float(times.max()),
        tensor_cores=on_tensor_cores(trace.names[name]),
        occupancy_percent=weighted(gpu.occupancy_percent[rows], times),
        blocks_per_sm=weighted(gpu.blocks_per_sm[rows], times),
        launch_delay_us=median(known) if len(known) else None,
        roofline=position,
    )


def without_overruns(view: View) -> Floats:
    """Durations inside the window, each up to the start of the next event of its stream."""
    gpu, rows = view.trace.gpu, view.rows
    durations = view.durations_us()
    order = np.lexsort((gpu.start_us[rows], gpu.stream[rows]))
    streams, starts = gpu.stream[rows][order], gpu.start_us[rows][order]
    room = np.append(
        np.where(streams[1:] == streams[:-1], starts[1:] - starts[:-1], np.inf), np.inf
    )
    limited = durations.copy()
    # Two events at one moment cannot both have no time: only a later start cuts.
    limited[order] = np.where(room > 0, np.minimum(durations[order], room), durations[order])
    return limited


def weighted(values: Floats, weights: Floats) -> float | None:
    """Mean weighted by time, of what the trace gives; None where it gives nothing."""
    known = ~np.isnan(values)
    weight = float(weights[known].sum())
    if not known.any() or weight <= 0:
        return None
    return float((values[known] * weights[known]).sum() / weight)


def sm_efficiency(view: View, durations: Floats) -> float | None:
    """Share of the window in which an average SM has a block, from the grids."""
    trace, gpu, rows = view.trace, view.trace.gpu, view.rows
    if view.window_us <= 0:
        return None
    blocks = gpu.blocks_per_sm[rows].copy()
    sms = next((d.num_sms for d in trace.devices if d.index == view.device and d.num_sms), None)
    counted = np.isnan(blocks) & (gpu.blocks[rows] != ABSENT)
    if sms is not None:
        blocks[counted] = gpu.blocks[rows][counted] / sms
    known = ~np.isnan(blocks)
    if not known.any():
        return None
    starts = np.maximum(gpu.start_us[rows][known], view.start_us)
    filled = _filled_us(starts, durations[known], np.minimum(1.0, blocks[known]))
    return min(1.0, filled / view.window_us)


def _filled_us(starts: Floats, durations: Floats, parts: Floats) -> float:
    """Time in which an SM has a block: the parts of what runs side by side add up to at most 1."""
    times = np.concatenate([starts, starts + durations])
    order = np.argsort(times, kind="stable")
    running = np.cumsum(np.concatenate([parts, -parts])[order])[:-1]
    return float((np.clip(running, 0.0, 1.0) * np.diff(times[order])).sum())


def _tensor_core_shares(view: View, durations: Floats) -> tuple[float | None, float | None]:
    """The share on them of what says whether it is, and the share of what does not say."""
    trace, gpu, rows = view.trace, view.trace.gpu, view.rows
    matrix = np.isin(kernel_classes(trace)[rows], MATRIX)
    used = distinct(gpu.name[rows][matrix])
    said = {int(name): on_tensor_cores(trace.names[name]) for name in used}

    def time_of(answer: bool | None) -> float:
        chosen = [name for name, found in said.items() if found is answer]
        return float(durations[matrix & np.isin(gpu.name[rows], chosen)].sum())

    fast, slow, unknown = time_of(True), time_of(False), time_of(None)
    whole = fast + slow + unknown
    return (
        fast / (fast + slow) if fast + slow > 0 else None,
        unknown / whole if whole > 0 else None,
    )


def _share(part: float, whole: float) -> float:
    return float(part) / whole if whole > 0 else 0.0
