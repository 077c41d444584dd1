"""The host waits for the GPU, then the GPU for the host: `.item()`, `.cpu()`, synchronise.

While the host is blocked nothing is queued, so after every wait the GPU stands still until the host
has launched again. That gap counts, up to the time that the host was blocked: without the waits it
would be ahead by that much and no more. On a run that is launch-bound anyway the gaps would be
there without the waits.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent, time_text
from ridgeline.records.finding import TraceFinding

CAUSES = ("sync-bound",)
LEADS_FROM = 0.15
_LEAST_SHARE = 0.02
_LEAST_COUNT = 3


def _sync_us(fact: RankFacts) -> float:
    return fact.sync_us


def find(reading: TraceReading) -> list[TraceFinding]:
    """Gaps after waits."""
    if not reading.facts:
        return []
    share = reading.share(_sync_us)
    worst = reading.worst(_sync_us)
    count = sum(point.count for point in worst.sync_points)
    if share < _LEAST_SHARE or count < _LEAST_COUNT:
        return []
    first = worst.sync_points[0]
    return [
        reading.finding(
            "sync-bound",
            of=_sync_us,
            confidence=0.8,
            summary=f"After {count} waits of the host for the GPU, the GPU stands still for "
            f"{percent(share)} of the window; the longest at {first.operator or first.call} "
            f"({time_text(first.host_us)} blocked).",
            evidence={
                "gap_after_waits_us": reading.mean(_sync_us),
                "waits": count,
                "blocked_us": reading.mean(lambda fact: fact.sync_blocked_us),
            },
            where=[point.line or point.operator or point.call for point in worst.sync_points],
            cure="Keep values on the GPU (no .item(), .cpu(), nonzero in the step), copy with "
            "non_blocking=True from pinned memory, and read metrics a step later.",
        )
    ]
