"""Work was launched, and nothing shows why the GPU did not start it.

No other stream, copy or collective was active, and no event was waited for: the driver or the
device itself, another process on the same GPU, or work that was not recorded. A trace cannot tell
these apart, so the finding is never sure.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent, time_text
from ridgeline.records.finding import TraceFinding

CAUSES = ("device-stall",)
LEADS_FROM = 0.12
LEADS_BY = "worth"
_LEAST_SHARE = 0.03


def _stalled_us(fact: RankFacts) -> float:
    return fact.idle["stall"]


def find(reading: TraceReading) -> list[TraceFinding]:
    """Idle with work in the queue and no reason in the trace."""
    share = reading.share(_stalled_us)
    if share < _LEAST_SHARE:
        return []
    worst = reading.worst(_stalled_us)
    longest = worst.stalls[0] if worst.stalls else None
    return [
        reading.finding(
            "device-stall",
            of=_stalled_us,
            worth_us=reading.saved("stall"),
            confidence=0.45,
            summary=f"For {percent(share)} of the window the GPU stands still with work launched "
            "and nothing else active: a stall of the device or its driver"
            + (f", {time_text(longest.us)} at the longest." if longest else "."),
            evidence={
                "stalled_us": reading.mean(_stalled_us),
                "longest_stall_us": longest.us if longest else None,
                "stalls_listed": len(worst.stalls),
            },
            where=[gap.line or gap.call for gap in worst.stalls],
            cure="Record again to see whether it recurs; look for another process on the GPU, "
            "clock or power limits, page faults of managed memory, and work that the profiler "
            "left out (nsys shows what Kineto drops).",
        )
    ]
