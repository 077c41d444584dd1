"""What the step does with the device's memory: hand it back all the time, or fill it up."""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, megabytes, percent, warning
from ridgeline.diagnose.verdict import is_full
from ridgeline.records import Finding

CAUSES = ("empty-cache", "memory-limit")


def find(reading: Reading) -> list[Finding]:
    """`empty_cache` in the loop, and memory that is full of activations."""
    return [*_empty_cache(reading), *_full(reading)]


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
