"""The host waits for the GPU, then the GPU for the host: `.item()`, `.cpu()`, synchronise.

While the host is blocked nothing is queued, so after every wait the GPU stands still until the host
has launched again. That gap counts; the blocked time does not: the GPU works through it. On a
run that is launch-bound anyway the gaps would be there without the waits.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent, time_text
from ridgeline.records.trace_finding import TraceFinding

CAUSES = ("sync-bound",)
LEADS_FROM = 0.15
_LEAST_SHARE = 0.02
_LEAST_COUNT = 3


def sync_us(fact: RankFacts) -> float:
    """GPU idle after waits of the host, without what the loader explains."""
    launches = fact.launches
    if launches is None or launches.launch_bound:
        return 0.0
    input_us = fact.host_wait_by.get("loader", 0.0)
    rest = fact.summary.host_wait_us - input_us - fact.pending_us
    return max(0.0, min(fact.sync_gap_us - input_us, rest))


def find(reading: TraceReading) -> list[TraceFinding]:
    """Gaps after waits."""
    if not reading.facts:
        return []
    share = reading.share(sync_us)
    worst = reading.worst(sync_us)
    count = sum(point.count for point in worst.sync_points)
    host_wait = reading.share(lambda fact: fact.summary.host_wait_us)
    if share < _LEAST_SHARE or count < _LEAST_COUNT or share < 0.5 * host_wait:
        return []
    first = worst.sync_points[0]
    return [
        reading.finding(
            "sync-bound",
            of=sync_us,
            confidence=0.8,
            summary=f"After {count} waits of the host for the GPU, the GPU stands still for "
            f"{percent(share)} of the window; the longest at {first.operator or first.call} "
            f"({time_text(first.host_us)} blocked).",
            evidence={
                "gap_after_waits_us": reading.mean(sync_us),
                "waits": count,
                "blocked_us": sum(point.host_us for point in worst.sync_points),
            },
            where=[point.line or point.operator or point.call for point in worst.sync_points],
            cure="Keep values on the GPU (no .item(), .cpu(), nonzero in the step), copy with "
            "non_blocking=True from pinned memory, and read metrics a step later.",
        )
    ]
