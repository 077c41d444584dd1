"""Every step leaves memory behind: something outside the step holds on to tensors or graphs."""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, megabytes, warning
from ridgeline.records import Finding

CAUSES = ("memory-leak",)

_LEAST_BYTES_PER_STEP = 8 * 1024
"""Logs, counters and lists of numbers grow by less; one kept graph is more."""
_BYTES_PER_COLLECTIVE = 1024
"""torch.distributed writes down each collective, in a list that is full after some thousands:
0.5 KB each with gloo, seen on two ranks that average after every micro-batch."""
_TENSORS_BYTES = 32 * 1024
"""More than the graph of a small model: tensors are kept."""
_SOON_STEPS = 2_000_000
"""A leak that fills the memory later than this hurts no run."""


def find(reading: Reading) -> list[Finding]:
    """Memory grows by the same amount step after step, and would fill the device."""
    profile = reading.profile
    growth = profile.memory_growth_bytes_per_step
    bookkeeping = _BYTES_PER_COLLECTIVE * profile.habit("collective").calls
    if growth < _LEAST_BYTES_PER_STEP + bookkeeping or profile.habit("retain_graph").calls > 0:
        return []
    if profile.settings.autograd_profiler:
        return []  # it keeps every event that it sees: that is its own finding
    left = max(0, profile.device_memory_bytes - profile.peak_memory_bytes)
    steps = left / growth
    if profile.device_memory_bytes and steps > _SOON_STEPS:
        return []
    return warning(
        "memory-leak",
        confidence=0.9 if growth >= _TENSORS_BYTES else 0.6,
        summary=f"Every step leaves {megabytes(growth)} behind"
        + (f": memory is full after {steps:,.0f} steps." if left else "."),
        evidence={
            "growth_bytes": int(growth),
            "peak_memory_bytes": profile.peak_memory_bytes,
            "device_memory_bytes": profile.device_memory_bytes,
            "num_steps_until_full": int(steps),
        },
        where=[
            *reading.hottest("other"),
            reading.model.forward_site if reading.model is not None else None,
        ],
        cure="Keep numbers, not tensors: store `loss.item()` or `output.detach()` where a "
        "tensor with its graph is appended to a list, a dictionary or a running sum.",
        effort="line",
    )
