"""What steps do with the device's memory: hand it back all the time, fill it up, or keep some.

A leak is memory that every step leaves behind: something outside the step holds on to tensors or
graphs.
"""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, megabytes, percent, warning
from ridgeline.diagnose.verdict import is_full
from ridgeline.records import Finding

CAUSES = ("empty-cache", "memory-limit", "memory-leak")

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
    """Find `empty_cache` in the loop, memory full of activations, and memory that grows."""
    return [*_empty_cache(reading), *_full(reading), *_leak(reading)]


def _empty_cache(reading: Reading) -> list[Finding]:
    emptied = reading.profile.habit("empty_cache")
    seconds = reading.of_mean(emptied.seconds)
    if emptied.calls <= 0 or not reading.on_gpu:
        return []  # without a GPU the call does nothing
    return reading.finding(
        "empty-cache",
        touched_seconds=seconds,
        # Freeing waits for the device, and the next step asks the driver for all of it again.
        saves_seconds=(0.8 * seconds, 2.0 * seconds),
        confidence=0.85,
        summary=f"torch.cuda.empty_cache() takes {duration(emptied.seconds)} per "
        f"step, {percent(reading.share(seconds))}, and the memory is asked for again at once.",
        evidence={
            "empty_cache_seconds": emptied.seconds,
            "calls_per_step": emptied.calls,
        },
        where=[emptied.site],
        cure="Remove the call: freed memory is reused from the cache, and what is in the cache "
        "does not count against the program.",
        effort="line",
        technique="no-empty-cache",
    )


def _full(reading: Reading) -> list[Finding]:
    profile = reading.profile
    memory = profile.memory
    weights = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    if not is_full(reading) or memory.activations_bytes <= weights:
        return []
    return warning(
        "memory-limit",
        confidence=0.6,
        summary=f"Memory is full: {megabytes(profile.peak_memory_bytes)} of "
        f"{megabytes(profile.device_memory_bytes)}, of which activations are "
        f"{megabytes(memory.activations_bytes)}.",
        evidence={
            "peak_memory_bytes": profile.peak_memory_bytes,
            "device_memory_bytes": profile.device_memory_bytes,
            "activations_bytes": memory.activations_bytes,
        },
        where=[reading.model.forward_site if reading.model is not None else None],
        cure="Checkpoint activations of the repeated block, or take smaller micro-batches and "
        "accumulate.",
        effort="line",
        technique="activation-checkpointing",
    )


def _leak(reading: Reading) -> list[Finding]:
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
