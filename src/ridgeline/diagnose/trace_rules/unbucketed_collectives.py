"""Many small all-reduces in a step, one per tensor: each pays the latency that a bucket pays once.

`trace/communication/buckets.py` finds them. What compute covers is not worth anything, so the worth
is at most the communication that is exposed.
"""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent
from ridgeline.records.finding import TraceFinding

CAUSES = ("not-bucketed",)
LEADS_BY = "share"
LEADS_FROM = 2.0
"""Never the first cause: where communication bounds the run, that is said first."""
_LEAST_SHARE = 0.005


def _worth_us(fact: RankFacts) -> float:
    if fact.unbucketed is None:
        return 0.0
    return min(fact.unbucketed.saved_us, fact.summary.communication_exposed_us)


def find(reading: TraceReading) -> list[TraceFinding]:
    """Find all-reduces that would be a few if they were joined."""
    share = reading.share(_worth_us)
    if share < _LEAST_SHARE:
        return []
    worst = reading.worst(_worth_us)
    found = worst.unbucketed
    if found is None:
        return []
    size = (
        f" ({quantity.binary_memory(found.median_bytes)} in the median)"
        if found.median_bytes is not None
        else ""
    )
    return [
        reading.finding(
            "not-bucketed",
            of=_worth_us,
            worth_us=reading.mean(_worth_us),
            confidence=0.85 if found.median_bytes is not None else 0.6,
            summary=f"{found.count} all-reduces, {found.per_step:.0f} a step, are small{size}: not "
            f"bucketed. Each pays {quantity.microseconds(found.latency_us)} whatever its size; "
            f"buckets would save {percent(share)} of the window.",
            evidence={
                "all_reduces": found.count,
                "all_reduces_per_step": round(found.per_step, 1),
                "median_bytes": found.median_bytes,
                "latency_us": found.latency_us,
                "saved_by_buckets_us": found.saved_us,
                "exposed_us": worst.summary.communication_exposed_us,
            },
            cure="Send gradients in buckets: DistributedDataParallel does (bucket_cap_mb=25), a "
            "loop over parameters does not; torch.distributed._coalescing_manager or one "
            "flattened tensor joins what you send yourself.",
        )
    ]
