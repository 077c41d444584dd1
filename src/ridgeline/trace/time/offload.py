"""Host memory used as the GPU's, seen as large copies that belong to every step: offload.

Out and back: what leaves the GPU in a step comes in again (activations; gradients and optimizer
state), far more than losses and metrics. In: parameters that are streamed in layer by layer, which
is told from a batch of input by its size and by the computing that lies between its copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from ridgeline.trace.columns import Floats, Ints, Kind, Mask
from ridgeline.trace.time.copy_directions import exposed_us, rows_towards
from ridgeline.trace.windows import View

_LARGE_BYTES = 2**16
_LEAST_OFFLOAD_BYTES = 2**23
"""In every step, out and back: more than losses and metrics."""
_LEAST_STREAMED_BYTES = 2**28
"""In every step, in alone: more than a batch of input."""
_BACK = 0.25
"""The smaller way over the larger one."""
_SPREAD = 0.25
_MOST_STEPS = 0.8
_PERIODS = 4
"""The window in parts, where it has no steps."""


class Offload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Copies between host and device that belong to every step."""

    way: Literal["out and back", "in"]
    out_bytes_per_step: float
    in_bytes_per_step: float
    exposed_us: float
    """While no kernel ran, over the window."""


def offload(view: View) -> Offload | None:
    """Copies between host and device that are a part of every step and too large for its input."""
    outward, inward = (_large(view, direction) for direction in ("DtoH", "HtoD"))
    out_bytes, in_bytes = (_per_period(view, rows) for rows in (outward, inward))
    back = np.minimum(out_bytes, in_bytes)
    way: Literal["out and back", "in"] | None = None
    there = (back >= _LEAST_OFFLOAD_BYTES) & (back >= _BACK * np.maximum(out_bytes, in_bytes))
    if np.mean(there) >= _MOST_STEPS:
        way = "out and back"
    elif np.mean((in_bytes >= _LEAST_STREAMED_BYTES) & _spread(view, inward)) >= _MOST_STEPS:
        way, outward = "in", outward[:0]
    if way is None:
        return None
    return Offload(
        way=way,
        out_bytes_per_step=float(out_bytes.mean()),
        in_bytes_per_step=float(in_bytes.mean()),
        exposed_us=exposed_us(view, np.sort(np.concatenate([outward, inward]))),
    )


def _large(view: View, direction: str) -> Ints:
    rows = rows_towards(view, direction)
    return rows[view.trace.gpu.bytes[rows] >= _LARGE_BYTES]


def _periods(view: View) -> Iterator[tuple[float, float]]:
    """Whole steps; parts of the window where there are less than two."""
    starts = [step.start_us for step in view.steps]
    if len(starts) < 3:
        starts = np.linspace(view.start_us, view.end_us, _PERIODS + 1).tolist()
    return pairwise(starts)


def _per_period(view: View, rows: Ints) -> Floats:
    gpu = view.trace.gpu
    return np.array([
        float(gpu.bytes[rows[_within(gpu.start_us[rows], first, last)]].sum())
        for first, last in _periods(view)
    ])  # fmt: skip


def _spread(view: View, rows: Ints) -> Mask:
    """Does much of a period's computing lie between its first copy and its last?"""
    gpu = view.trace.gpu
    kernels = view.rows[gpu.kind[view.rows] == Kind.KERNEL]
    found = []
    for first, last in _periods(view):
        copied = gpu.start_us[rows[_within(gpu.start_us[rows], first, last)]]
        own = kernels[_within(gpu.start_us[kernels], first, last)]
        whole = float(gpu.duration_us[own].sum())
        inside = float(gpu.duration_us[
            own[_within(gpu.start_us[own], copied.min(), copied.max())]
        ].sum()) if len(copied) else 0.0  # fmt: skip
        found.append(whole > 0 and inside >= _SPREAD * whole)
    return np.array(found, bool)


def _within(times: Floats, first: float, last: float) -> slice:
    """Where times that are in order lie from `first` on and before `last`."""
    return slice(*np.searchsorted(times, (first, last)).tolist())
