"""Work is queued and the GPU stands still: it waits for another stream, another rank, or a copy."""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent
from ridgeline.records.finding import TraceFinding

CAUSES = ("dependency-wait",)
LEADS_FROM = 0.20
LEADS_BY = "share"
_LEAST_SHARE = 0.03


def _waiting_us(fact: RankFacts) -> float:
    return fact.idle["dependency"]


def find(reading: TraceReading) -> list[TraceFinding]:
    """Idle with work in the queue, and the trace shows what for."""
    share = reading.share(_waiting_us)
    if share < _LEAST_SHARE:
        return []
    worst = reading.worst(_waiting_us)
    launches = worst.launches
    talks = sum(len(fact.collectives.rows) for fact in reading.facts)
    return [
        reading.finding(
            "dependency-wait",
            of=_waiting_us,
            worth_us=reading.saved("dependency"),
            confidence=0.85 if share >= 0.3 else 0.7,
            summary=f"For {percent(share)} of the window the GPU stands still although its work "
            "was launched before: it waits for another stream, rank or copy, not for the host.",
            evidence={
                "dependency_wait_us": reading.mean(_waiting_us),
                "launch_to_start_median_us": launches.delay_us.get("median") if launches else None,
                "idle_for_the_host_us": reading.mean(lambda fact: fact.idle_of_host_us),
                "streams": len(launches.queues) if launches else 0,
                "communication_kernels": talks,
            },
            cure="Look at the other ranks (load all traces together: a late rank is the usual "
            "reason) and at the events that streams wait for (ridgeline trace critical-path)."
            if talks
            else "Look at what the streams wait for (ridgeline trace critical-path): an event "
            "recorded too late, or a copy in the same stream.",
        )
    ]
