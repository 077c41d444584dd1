"""The GPU waits while the launching thread waits for its loader.

Host wait is time in which the GPU had nothing to do because nothing was launched; the part of it
that the launching thread spent inside the loader's iterator is input. A loader that works while the
GPU is busy costs nothing and is not counted, so the figure is idle time, not time in the loader. A
host that is slow outside of its loader too is `host-bound` for that part; the larger comes first.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent, time_text
from ridgeline.records.finding import TraceFinding

CAUSES = ("input-bound",)
LEADS_FROM = 0.10
_LEAST_SHARE = 0.02


def _loader_us(fact: RankFacts) -> float:
    return fact.loader_us


def find(reading: TraceReading) -> list[TraceFinding]:
    """GPU idle inside the loader."""
    share = reading.share(_loader_us)
    if share < _LEAST_SHARE:
        return []
    worst = reading.worst(_loader_us)
    gap = worst.longest_gap
    host_wait = reading.mean(lambda fact: fact.summary.host_wait_us)
    part = reading.mean(_loader_us) / host_wait
    return [
        reading.finding(
            "input-bound",
            of=_loader_us,
            confidence=0.9 if share >= LEADS_FROM else 0.7,
            summary=f"The GPU stands still for {percent(share)} of the window while the host "
            f"prepares input: {time_text(reading.mean(_loader_us))} inside the data loader, "
            f"{percent(part)} of all waiting for the host.",
            evidence={
                "loader_wait_us": reading.mean(_loader_us),
                "host_wait_us": host_wait,
                "host_blocked_in_waits_us": reading.mean(lambda fact: fact.sync_blocked_us),
                "idle_share": reading.share(lambda fact: fact.summary.idle_us),
                "longest_gap_us": gap.us if gap else None,
                "longest_gap_call": gap.call if gap else None,
            },
            where=[gap.line if gap else None],
            cure="Prepare batches in other processes (DataLoader num_workers, prefetch_factor, "
            "persistent_workers), move decoding and resizing there or to the GPU, or cache it.",
        )
    ]
