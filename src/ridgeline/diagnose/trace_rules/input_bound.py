"""The GPU waits while the launching thread waits for its loader.

Idle time that the launching thread spent inside the loader's iterator. A loader that works while
the GPU is busy costs nothing and is not counted, so the figure is idle time, not time in the
loader. A host that is slow outside of its loader too is `host-bound` for that part.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent, time_text
from ridgeline.records.finding import TraceFinding

CAUSES = ("input-bound",)
LEADS_FROM = 0.10
LEADS_BY = "worth"
_LEAST_SHARE = 0.02


def _loader_us(fact: RankFacts) -> float:
    return fact.idle["loader"]


def find(reading: TraceReading) -> list[TraceFinding]:
    """GPU idle inside the loader."""
    share = reading.share(_loader_us)
    if share < _LEAST_SHARE:
        return []
    worst = reading.worst(_loader_us)
    edge = worst.edge_gap
    gap = edge if edge and edge.us > 0.5 * _loader_us(worst) else worst.longest_gap
    host_wait = reading.mean(lambda fact: fact.idle_of_host_us)
    part = reading.mean(_loader_us) / host_wait
    return [
        reading.finding(
            "input-bound",
            of=_loader_us,
            worth_us=reading.saved("loader"),
            confidence=0.9 if share >= LEADS_FROM else 0.7,
            summary=f"The GPU stands still for {percent(share)} of the window while the host "
            f"prepares input: {time_text(reading.mean(_loader_us))} inside the data loader, "
            f"{percent(part)} of all waiting for the host.",
            evidence={
                "loader_wait_us": reading.mean(_loader_us),
                "idle_for_the_host_us": host_wait,
                "host_blocked_in_waits_us": reading.mean(lambda fact: fact.sync_blocked_us),
                "idle_share": reading.share(lambda fact: fact.summary.idle_us),
                "longest_gap_us": gap.us if gap else None,
                "longest_gap_call": gap.call if gap else None,
            },
            where=[gap.line if gap else None],
            cure="Its workers are too slow: give it more (num_workers), move decoding and resizing "
            "to the GPU, store the data decoded or resized, pin memory, raise prefetch_factor."
            if worst.loader_workers
            else "Prepare batches in other processes (DataLoader num_workers, prefetch_factor, "
            "persistent_workers), move decoding and resizing there or to the GPU, or cache it.",
        )
    ]
