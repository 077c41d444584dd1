"""All-reduces that could be joined into buckets: `unbucketed(view)`.

An all-reduce costs a fixed time (launch, synchronisation of the ranks, the trip around the ring)
and a time that grows with the message; below about a megabyte the fixed part is nearly all of it.
The fixed time is taken from the calls themselves: the fastest tenth of those that are small. In
buckets of DDP's default size only one fixed time per bucket would be left.

All-reduces of tensor parallelism are small and many as well, but each waits for the products of
matrices before it and has the size of the activations. Only those are counted that follow each
other without such a product between them, or whose sizes are as many as those of parameters.
"""

from __future__ import annotations

from math import ceil

import msgspec
import numpy as np

from ridgeline.trace.columns import Floats, Ints
from ridgeline.trace.communication.collectives import calls_of
from ridgeline.trace.kernel_names import MATRIX, is_communication, kernel_classes
from ridgeline.trace.sorting import distinct, median, quantile
from ridgeline.trace.windows import View

BUCKET_BYTES = 25 * 2**20
"""The default `bucket_cap_mb` of torch.nn.parallel.DistributedDataParallel."""
SMALL_BYTES = 2**18
"""Far below the size from which bandwidth counts."""
_SMALL_US = 100.0
"""An all-reduce of unknown size that is as short as this is a small one."""
_MANY = 32
"""In one step; a model in buckets has fewer than it has layers."""
_SIZES_OF_PARAMETERS = 4
"""Activations of one model have one or two sizes."""
_MOST_OF_ONE_SIZE = 0.7
"""Half of a transformer's parameters are vectors as wide as it is."""


class UnbucketedAllReduces(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The small all-reduces of one GPU that do not wait for each other's results."""

    count: int
    per_step: float
    median_bytes: float | None
    """None where the trace does not say how large they are."""
    latency_us: float
    """What each costs whatever its size."""
    saved_us: float
    """What buckets would leave out, were nothing of it hidden."""


def unbucketed(view: View) -> UnbucketedAllReduces | None:
    """The all-reduces that buckets would join; None where there are few, or they are large."""
    trace, talks = view.trace, is_communication(view.trace)
    rows = view.rows[talks[view.rows]]
    calls = calls_of(trace, rows)
    chosen = np.array([call.kind == "all-reduce" for call in calls], bool)
    steps = max(1, len(view.steps))
    if chosen.sum() / steps < _MANY:
        return None
    sizes = np.array([call.bytes or np.nan for call in calls], np.float64)[chosen]
    rows = rows[chosen]
    lengths = trace.gpu.duration_us[rows]
    known = sizes[~np.isnan(sizes)]
    typical = median(known) if len(known) > 0.5 * len(sizes) else None
    if (median(lengths) >= _SMALL_US) if typical is None else (typical >= SMALL_BYTES):
        return None
    if not (_of_many_sizes(known) or _without_products_between(view, rows)):
        return None
    small = lengths[(sizes < SMALL_BYTES) | np.isnan(sizes)]
    latency = quantile(small, 0.1)
    buckets = steps * max(1, ceil(float(known.sum()) / steps / BUCKET_BYTES))
    return UnbucketedAllReduces(
        count=len(rows),
        per_step=len(rows) / steps,
        median_bytes=typical,
        latency_us=latency,
        saved_us=max(0, len(small) - buckets) * latency,
    )


def _of_many_sizes(sizes: Floats) -> bool:
    whole = sizes.astype(np.int64)
    different = distinct(whole)
    if len(different) < _SIZES_OF_PARAMETERS:
        return False
    commonest = np.bincount(np.searchsorted(different, whole)).max()
    return bool(commonest < _MOST_OF_ONE_SIZE * len(whole))


def _without_products_between(view: View, rows: Ints) -> bool:
    """Do most of them start with no product of matrices since the one before?"""
    gpu = view.trace.gpu
    products = view.rows[np.isin(kernel_classes(view.trace)[view.rows], MATRIX)]
    before = np.searchsorted(np.sort(gpu.start_us[products]), np.sort(gpu.start_us[rows]))
    return bool(np.mean(np.diff(before) == 0) > 0.5)
