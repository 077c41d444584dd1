"""The roofline: the rate that a kernel can reach, from its arithmetic intensity.

    attainable = min(peak, intensity × bandwidth)          intensity = FLOPs / bytes moved

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
architectures", Communications of the ACM 52(4), 2009. Left of the ridge point memory decides,
right of it arithmetic does.
"""

from __future__ import annotations

import math
from typing import Literal

Bound = Literal["compute", "memory"]


def ridge_point(peak_flops_per_second: float, bandwidth_bytes_per_second: float) -> float:
    """FLOPs per byte from which on arithmetic is the limit.

    >>> ridge_point(989e12, 3.35e12)
    295.2238805970149
    """
    return peak_flops_per_second / bandwidth_bytes_per_second


def attainable_flops_per_second(
    intensity: float, peak_flops_per_second: float, bandwidth_bytes_per_second: float
) -> float:
    """The most FLOP/s at `intensity` FLOPs per byte.

    >>> attainable_flops_per_second(10.0, 100e9, 20e9)
    100000000000.0
    >>> attainable_flops_per_second(1.0, 100e9, 20e9)
    20000000000.0
    """
    return min(peak_flops_per_second, intensity * bandwidth_bytes_per_second)


def least_seconds(
    flops: float,
    moved_bytes: float,
    peak_flops_per_second: float | None,
    bandwidth_bytes_per_second: float,
) -> float:
    """The least time for this much arithmetic and traffic; without a peak, for the traffic.

    >>> least_seconds(200e9, 1e9, 100e9, 20e9)
    2.0
    """
    compute = flops / peak_flops_per_second if peak_flops_per_second else 0.0
    return max(compute, moved_bytes / bandwidth_bytes_per_second)


def bound(
    flops: float,
    moved_bytes: float,
    peak_flops_per_second: float | None,
    bandwidth_bytes_per_second: float,
) -> Bound:
    """Which of the two limits is the higher.

    >>> bound(1e9, 1e9, 100e9, 20e9)
    'memory'
    """
    if not flops or not peak_flops_per_second:
        return "memory"
    intensity = flops / moved_bytes if moved_bytes else math.inf
    ridge = ridge_point(peak_flops_per_second, bandwidth_bytes_per_second)
    return "compute" if intensity >= ridge else "memory"
