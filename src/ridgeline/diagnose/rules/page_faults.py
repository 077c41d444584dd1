"""Memory that goes back to the system after every use, and has to be cleared for the next.

The C library returns large freed blocks to the kernel. Every page of the next tensor then faults
at its first write: the kernel finds a page and fills it with zeros, before the operator
overwrites them. What a fault costs depends on the machine (a virtual one pays several times), so
the time is what the process was seen to spend in the kernel.
"""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, percent
from ridgeline.records import Finding

CAUSES = ("page-faults",)

_LEAST_FAULTS = 500.0
"""Per step; below, time in the kernel is something else."""
_MOST_SECONDS = 10e-6
"""No fault of a small page is believed to take more."""
_SAVED = (0.7, 0.9)
"""Shares of the time in the kernel: where all threads spend it side by side, and where one does;
the rest is other work."""


def find(reading: Reading) -> list[Finding]:
    """Many faults in every step, whose time shows."""
    settings = reading.profile.settings
    if reading.on_gpu or settings.page_faults < _LEAST_FAULTS or settings.kernel_seconds <= 0:
        return []
    kernel = min(settings.kernel_seconds, settings.page_faults * _MOST_SECONDS)
    seconds = reading.of_mean(kernel)
    least, most = settings.kernel_wall_seconds(reading.profile.step_seconds.mean)
    believed = reading.of_mean(kernel / settings.kernel_seconds)
    return reading.finding(
        "page-faults",
        touched_seconds=min(seconds, reading.step_seconds),
        saves_seconds=(_SAVED[0] * believed * least, _SAVED[1] * believed * most),
        confidence=0.75,
        summary=f"The kernel clears {settings.page_faults:,.0f} pages of memory per step, which "
        f"takes {duration(kernel)} of CPU time, {percent(reading.share(seconds))} of the step: "
        "freed tensors are given back and asked for again.",
        evidence={
            "page_faults_per_step": round(settings.page_faults),
            "kernel_seconds": settings.kernel_seconds,
            "num_threads": settings.num_threads,
        },
        cure="Let the process keep what it frees: `mallopt(M_MMAP_MAX, 0)` and "
        "`mallopt(M_TRIM_THRESHOLD, -1)`, or start it with jemalloc or TCMalloc.",
        effort="line",
        technique="malloc-retain",
    )
