"""Work is queued and the GPU stands still: it waits for another stream, another rank, or a copy."""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent
from ridgeline.records.finding import TraceFinding

CAUSES = ("dependency-wait",)
LEADS_FROM = 0.20
_LEAST_SHARE = 0.03


def _waiting_us(fact: RankFacts) -> float:
    return fact.summary.dependency_wait_us + fact.pending_us


def find(reading: TraceReading) -> list[TraceFinding]:
    """Idle with work in the queue."""
    share = reading.share(_waiting_us)
    if share < _LEAST_SHARE:
        return []
    worst = reading.worst(_waiting_us)
    launches = worst.launches
    talks = sum(len(fact.collectives.rows) for fact in reading.facts)
    streams = len(launches.queues) if launches else 0
    return [
        reading.finding(
            "dependency-wait",
            of=_waiting_us,
            confidence=0.85 if share >= 0.3 else 0.7,
            summary=f"For {percent(share)} of the window the GPU stands still although its work "
            "was launched long before: it waits for another stream, rank or "
            "copy, not for the host.",
            evidence={
                "dependency_wait_us": reading.mean(_waiting_us),
                "launch_to_start_median_us": launches.delay_us.get("median") if launches else None,
                "host_wait_share": reading.share(lambda fact: fact.summary.host_wait_us),
                "streams": streams,
                "communication_kernels": talks,
            },
            cure="Look at the other ranks (load all traces together: a late rank is the usual "
            "reason) and at the events that streams wait for (ridgeline trace critical-path)."
            if talks
            else "Look at what the streams wait for (ridgeline trace critical-path): an event "
            "recorded too late, or a copy in the same stream.",
        )
    ]
