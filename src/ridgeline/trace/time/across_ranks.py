"""Kernel times of many ranks in one table: mean, extremes with their ranks, spread, outliers.

Each rank is read by itself and leaves a small record, its time by kernel and class (`rank_totals`);
`kernels_over_ranks` joins those. Kernels are told apart by their short names, since ranks of one
job may run variants of one template. A rank stands out where its time is more than 3.5 scaled
median absolute deviations from the median of all ranks, by 5 % of it, and by a thousandth of the
mean GPU time. The time of a collective is mostly waiting: there the rank that comes last has the
least.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from ridgeline.trace.columns import Floats, Mask, Trace
from ridgeline.trace.kernel_names import KERNEL_CLASSES, kernel_classes, short_name
from ridgeline.trace.sorting import distinct, median
from ridgeline.trace.time.kernels import without_overruns
from ridgeline.trace.windows import GpuRecord, View, views

OUTLIER_DEVIATIONS = 3.5
"""Scaled median absolute deviations from which a rank stands out (Iglewicz and Hoaglin, 1993)."""
_OUTLIER_SHARE = 0.05
_WORTH_A_WORD = 0.001
_FEWEST = 3
"""Among fewer ranks none stands out."""


class KernelTotal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time of one kernel on one GPU."""

    name: str
    """The short name of the kernel."""
    kernel_class: str
    count: int
    total_us: float


class RankTotals(GpuRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time of every kernel on the GPU of one rank."""

    kernels: list[KernelTotal]


class KernelOverRanks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time of one kernel, or of one class, on all ranks."""

    name: str
    kernel_class: str
    ranks: int
    """How many ranks ran it; the others count as zero."""
    mean_calls: float
    """Calls of it per rank."""
    mean_us: float
    """The mean over ranks of a rank's total."""
    min_us: float
    min_rank: int
    max_us: float
    max_rank: int
    spread_share: float
    """The highest less the lowest, over the mean."""
    outlier_ranks: list[int]


class RankOverview(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rank beside the others."""

    rank: int
    """The rank's number; its place among the traces where not all have one of their own."""
    file: str
    device: int
    gpu_us: float
    """The time of all its GPU events."""
    classes_us: dict[str, float]
    """The time of its GPU events by class of kernel."""
    stands_out_in: int
    """In the times of so many kernels it is an outlier."""


class KernelsOverRanks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kernel times of the ranks of one job."""

    window: str
    ranks: list[RankOverview]
    classes: list[KernelOverRanks]
    kernels: list[KernelOverRanks]
    """The kernels with most time over all ranks."""
    names: int
    """How many different kernels there are."""


def rank_totals(trace: Trace, window: str = "trace") -> list[RankTotals]:
    """The time of every kernel on each GPU of the trace."""
    return [_totals_of(view) for view in views(trace, window)]


def _totals_of(view: View) -> RankTotals:
    trace, rows = view.trace, view.rows
    durations = without_overruns(view)
    classes = kernel_classes(trace)[rows].astype(np.int64)
    many = len(KERNEL_CLASSES)
    keys = trace.gpu.name[rows].astype(np.int64) * many + classes
    used = distinct(keys)
    places = np.searchsorted(used, keys)
    counts = np.bincount(places, minlength=len(used))
    sums = np.bincount(places, weights=durations, minlength=len(used))
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for place, key in enumerate(used.tolist()):
        name = short_name(trace.names[key // many]), KERNEL_CLASSES[key % many]
        count, total = found.get(name, (0, 0.0))
        found[name] = count + int(counts[place]), total + float(sums[place])
    return RankTotals(
        **view.head(),
        kernels=[
            KernelTotal(name=name, kernel_class=kind, count=count, total_us=total)
            for (name, kind), (count, total) in found.items()
        ],
    )


def kernels_over_ranks(ranks: Sequence[RankTotals], *, top: int = 30) -> KernelsOverRanks:
    """The `top` kernels of all ranks together, and every class."""
    numbers = _numbers(ranks)
    keys = sorted({(one.name, one.kernel_class) for rank in ranks for one in rank.kernels})
    place_of = {key: place for place, key in enumerate(keys)}
    times, calls = np.zeros((len(keys), len(ranks))), np.zeros((len(keys), len(ranks)))
    for column, rank in enumerate(ranks):
        for one in rank.kernels:
            place = place_of[one.name, one.kernel_class]
            times[place, column], calls[place, column] = one.total_us, one.count
    least = _WORTH_A_WORD * float(times.sum(axis=0).mean())
    odd: Mask = np.array([_outliers(row, least) for row in times]).reshape(times.shape)
    kinds = np.array([KERNEL_CLASSES.index(kind) for _, kind in keys], np.int64)
    classes = []
    for kind in distinct(kinds).tolist():
        rows = kinds == kind
        whole, count = times[rows].sum(axis=0), calls[rows].sum(axis=0)
        name = KERNEL_CLASSES[kind]
        classes.append(_over((name, name), whole, count, _outliers(whole, least), numbers))
    classes.sort(key=lambda one: -one.mean_us)
    order = np.argsort(-times.sum(axis=1), kind="stable")[:top].tolist()
    return KernelsOverRanks(
        window=ranks[0].window,
        ranks=[
            RankOverview(
                rank=numbers[column],
                file=rank.file,
                device=rank.device,
                gpu_us=float(times[:, column].sum()),
                classes_us={
                    KERNEL_CLASSES[kind]: float(times[kinds == kind, column].sum())
                    for kind in distinct(kinds).tolist()
                },
                stands_out_in=int(odd[:, column].sum()),
            )
            for column, rank in enumerate(ranks)
        ],
        classes=classes,
        kernels=[_over(keys[row], times[row], calls[row], odd[row], numbers) for row in order],
        names=len(keys),
    )


def _numbers(ranks: Sequence[RankTotals]) -> list[int]:
    """The ranks' own numbers where each has one of its own, else their places."""
    own = [rank.rank for rank in ranks if rank.rank is not None]
    return own if len(set(own)) == len(ranks) else list(range(len(ranks)))


def _outliers(times: Floats, least_us: float) -> Mask:
    middle = median(times)
    away = np.abs(times - middle)
    scale = 1.4826 * median(away)
    odd: Mask = (away > OUTLIER_DEVIATIONS * scale) & (away > _OUTLIER_SHARE * middle)
    return odd & (away > least_us) & (len(times) >= _FEWEST)


def _over(
    key: tuple[str, str], times: Floats, calls: Floats, odd: Mask, numbers: list[int]
) -> KernelOverRanks:
    mean = float(times.mean())
    low, high = int(np.argmin(times)), int(np.argmax(times))
    return KernelOverRanks(
        name=key[0],
        kernel_class=key[1],
        ranks=int((calls > 0).sum()),
        mean_calls=float(calls.mean()),
        mean_us=mean,
        min_us=float(times[low]),
        min_rank=numbers[low],
        max_us=float(times[high]),
        max_rank=numbers[high],
        spread_share=float(times[high] - times[low]) / mean if mean > 0 else 0.0,
        outlier_ranks=[numbers[place] for place in np.flatnonzero(odd).tolist()],
    )
