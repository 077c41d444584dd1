"""Batches are copied to the GPU out of memory that is not pinned.

The copy engine cannot read such memory: the driver copies twice, and the host waits for it.
"""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration
from ridgeline.records import Finding

CAUSES = ("pageable-copies",)

_USUAL_RATIO = 2.0
"""Pinned over pageable bandwidth where it was not probed."""


def find(reading: Reading) -> list[Finding]:
    """Copies from pageable memory, on a GPU."""
    copies = reading.profile.habit("pageable_copy")
    seconds = reading.phase_seconds("copy")
    if not reading.on_gpu or copies.calls <= 0 or seconds <= 0:
        return []
    ratio = _USUAL_RATIO
    limits = reading.ceilings
    if (
        limits is not None
        and limits.host_to_device_pinned_bytes_per_second
        and limits.host_to_device_pageable_bytes_per_second
    ):
        ratio = max(
            1.0,
            limits.host_to_device_pinned_bytes_per_second
            / limits.host_to_device_pageable_bytes_per_second,
        )
    loader = reading.loader
    return reading.finding(
        "pageable-copies",
        touched_seconds=seconds,
        saves_seconds=(seconds * (1 - 1 / ratio), 0.95 * seconds),
        confidence=0.85,
        summary=f"Copies to the GPU take {duration(seconds)} per step and "
        f"{copies.calls:.3g} of them start in memory that is not pinned.",
        evidence={
            "copy_seconds": seconds,
            "pageable_copies_per_step": copies.calls,
            "batch_bytes": loader.batch_bytes if loader is not None else 0,
            "pinned_over_pageable_ratio": ratio,
        },
        where=[loader.site if loader is not None else None],
        cure="Use `pin_memory=True` in the loader and copy with `non_blocking=True`.",
        effort="flag",
        technique="pinned-memory",
    )
