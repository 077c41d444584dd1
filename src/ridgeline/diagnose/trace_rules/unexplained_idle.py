"""The GPU is idle for most of the window, and no launch shows who was to end it.

A trace without the host's calls, or work that nobody launches: pages of managed memory move when
the host or a kernel touches them, and the gap between two moves is whatever the host did meanwhile.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent
from ridgeline.records.finding import TraceFinding

CAUSES = ("unexplained-idle",)
LEADS_BY = "share"
LEADS_FROM = 0.40
_LEAST_SHARE = 0.25
_PAGES = "Unified"
"""Copies of managed memory have it in their names (`trace/formats/nsight`)."""


def _unexplained_us(fact: RankFacts) -> float:
    return fact.idle["unknown"]


def find(reading: TraceReading) -> list[TraceFinding]:
    """Idle time that ends with work whose launch is not in the trace."""
    share = reading.share(_unexplained_us)
    if share < _LEAST_SHARE:
        return []
    worst = reading.worst(_unexplained_us)
    pages = sum(us for name, us in worst.copies_us.items() if _PAGES in name)
    managed = pages > 0.5 * worst.summary.copy_us > 0
    why = "pages of managed memory move" if managed else "its work was launched by nothing recorded"
    return [
        reading.finding(
            "unexplained-idle",
            of=_unexplained_us,
            worth_us=0.0,
            confidence=0.4,
            summary=f"For {percent(share)} of the window the GPU stands still and the trace does "
            f"not say why: {why}.",
            evidence={
                "unexplained_idle_us": reading.mean(_unexplained_us),
                "busy_us": reading.mean(lambda fact: fact.summary.busy_us),
                "managed_memory_us": pages if managed else None,
            },
            cure="Touch managed memory on one side at a time: prefetch it in large pieces "
            "(cudaMemPrefetchAsync), or copy it explicitly."
            if managed
            else "Record the host as well (ProfilerActivity.CPU; nsys --trace cuda,nvtx,osrt): the "
            "calls that launch are missing.",
        )
    ]
