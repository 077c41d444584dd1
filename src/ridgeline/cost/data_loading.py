"""What feeding a step costs at each level of the storage hierarchy, and which of them bounds it.

A batch comes from the disk (or, where the system keeps its files, from memory), is made by workers,
and crosses to the device. The levels work side by side, each on another batch, so that a step that
prefetches takes as long as the slowest of them (Little's law with enough batches under way); one
that does not takes their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingForecast:
    """The time that each level needs for one step's batch."""

    disk_seconds: float
    memory_seconds: float
    """Reading what the system's page cache holds."""
    making_seconds: float
    """Decoding and collating, shared out over the workers."""
    device_seconds: float
    """Copying the batch to the device."""
    step_seconds: float
    """The longest level or the compute, as everything is prefetched."""
    unhidden_seconds: float
    """All levels and the compute one after another, where nothing is prefetched."""
    bound: str
    """The level that takes longest, `disk`, `memory`, `making`, `device` or `compute`."""


def loading_forecast(
    stored_bytes: float,
    disk_bytes_per_second: float,
    *,
    cached_share: float = 0.0,
    memory_bytes_per_second: float = math.inf,
    making_seconds: float = 0.0,
    workers: int = 1,
    batch_bytes: float = 0.0,
    device_bytes_per_second: float = math.inf,
    compute_seconds: float = 0.0,
) -> LoadingForecast:
    """The least time of a step that reads `stored_bytes`, by level.

    256 JPEGs of 110 KB from a disk of 200 MB/s, 8 ms each on 16 cores, for a step of 90 ms:

    >>> found = loading_forecast(
    ...     256 * 110e3, 200e6, making_seconds=256 * 8e-3, workers=16, compute_seconds=0.09
    ... )
    >>> found.bound, round(found.disk_seconds, 3), round(found.step_seconds, 3)
    ('disk', 0.141, 0.141)

    Raises:
        ValueError: A rate or a number of workers is not above zero, or the share is none.
    """
    rates = (disk_bytes_per_second, memory_bytes_per_second, device_bytes_per_second)
    if min(rates) <= 0 or workers < 1:
        raise ValueError("rates and workers are above zero")
    if not 0 <= cached_share <= 1:
        raise ValueError(f"cached_share is {cached_share:g}: give 0 to 1")
    levels = {
        "disk": (1 - cached_share) * stored_bytes / disk_bytes_per_second,
        "memory": stored_bytes / memory_bytes_per_second,
        "making": making_seconds / workers,
        "device": batch_bytes / device_bytes_per_second,
        "compute": compute_seconds,
    }
    bound = max(levels, key=lambda name: levels[name])
    return LoadingForecast(
        disk_seconds=levels["disk"],
        memory_seconds=levels["memory"],
        making_seconds=levels["making"],
        device_seconds=levels["device"],
        step_seconds=levels[bound],
        unhidden_seconds=sum(levels.values()) - levels["making"] + making_seconds,
        bound=bound,
    )
