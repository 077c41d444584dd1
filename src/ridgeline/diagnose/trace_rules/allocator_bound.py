"""Memory of the GPU is asked for and given back to the driver all the time.

torch's caching allocator asks the driver while it grows and keeps what it has. `cudaMalloc` and
`cudaFree` that come throughout mean that it is switched off, or that it is at its limit and gives
everything back again and again. `cudaFree` waits until the GPU has finished, so every one of them
empties the queue.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent
from ridgeline.records.finding import TraceFinding

CAUSES = ("allocator-bound",)
LEADS_FROM = 0.10
LEADS_BY = "worth"
_LEAST_SHARE = 0.02


def _allocating_us(fact: RankFacts) -> float:
    return fact.saved["allocator"]


def find(reading: TraceReading) -> list[TraceFinding]:
    """Find calls of the driver's allocator that recur, and what the window would lose without."""
    recurring = [fact for fact in reading.facts if fact.allocates_throughout]
    share = reading.share(_allocating_us)
    if not recurring or share < _LEAST_SHARE:
        return []
    worst = reading.worst(_allocating_us)
    steps = worst.summary.steps
    often = f"{worst.allocator_calls / steps:.0f} a step" if steps else str(worst.allocator_calls)
    return [
        reading.finding(
            "allocator-bound",
            of=_allocating_us,
            worth_us=reading.saved("allocator"),
            confidence=0.85,
            summary=f"Memory of the GPU is allocated and freed by the driver throughout ({often} "
            f"calls): the run would be {percent(share)} shorter with an allocator that keeps it.",
            evidence={
                "allocator_calls": worst.allocator_calls,
                "idle_in_the_allocator_us": reading.idle("allocator"),
                "saved_without_them_us": reading.saved("allocator"),
            },
            cure="Switch the caching allocator on again (PYTORCH_NO_CUDA_MEMORY_CACHING unset); "
            "where memory is full, use less of it or "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; call torch.cuda.empty_cache() "
            "in no step.",
        )
    ]
