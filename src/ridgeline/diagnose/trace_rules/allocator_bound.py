"""Memory of the GPU is asked for and given back to the driver all the time.

torch's caching allocator asks the driver while it grows and keeps what it has. `cudaMalloc` and
`cudaFree` that come throughout mean that it is switched off; frees in the midst of a run that goes
on asking for memory, that memory is full and it gives back what it keeps. `cudaFree` waits until
the GPU has finished, so every one of them empties the queue.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent
from ridgeline.records.finding import TraceFinding

CAUSES = ("allocator-bound",)
LEADS_FROM = 0.10
LEADS_BY = "worth"
_LEAST_SHARE = 0.02
_OFF = (
    "Switch the caching allocator on again (PYTORCH_NO_CUDA_MEMORY_CACHING unset); where memory is "
    "full, use less of it or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; call "
    "torch.cuda.empty_cache() in no step."
)
_FULL = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or less memory: a smaller batch, activation "
    "checkpointing, sizes that change less from step to step; call torch.cuda.empty_cache() in no "
    "step."
)


def _allocating_us(fact: RankFacts) -> float:
    return fact.saved["allocator"]


def find(reading: TraceReading) -> list[TraceFinding]:
    """Find calls of the driver's allocator that recur, and what the window would lose without."""
    recurring = [
        fact for fact in reading.facts if fact.allocates_throughout or fact.gives_memory_back
    ]
    share = reading.share(_allocating_us)
    if not recurring or share < _LEAST_SHARE:
        return []
    worst = reading.worst(_allocating_us)
    full = not any(fact.allocates_throughout for fact in recurring)
    return [
        reading.finding(
            "allocator-bound",
            of=_allocating_us,
            worth_us=reading.saved("allocator"),
            confidence=0.85,
            summary=_summary(worst, share, full=full),
            evidence={
                "allocator_calls": worst.allocator_calls,
                "idle_in_the_allocator_us": reading.idle("allocator"),
                "saved_without_them_us": reading.saved("allocator"),
            },
            cure=_FULL if full else _OFF,
        )
    ]


def _summary(worst: RankFacts, share: float, *, full: bool) -> str:
    steps = worst.summary.steps
    calls = worst.allocator_calls
    often = f"{calls / steps:.0f} calls a step" if steps else f"{calls} calls"
    if full:
        return (
            "Memory of the GPU is full: the allocator gives back what it keeps in the midst of the "
            f"run and asks the driver again ({often}), without which it would be {percent(share)} "
            "shorter."
        )
    return (
        f"Memory of the GPU is allocated and freed by the driver throughout ({often}): the "
        f"run would be {percent(share)} shorter with an allocator that keeps it."
    )
