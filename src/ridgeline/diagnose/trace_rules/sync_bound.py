"""The host waits for the GPU, then the GPU for the host: `.item()`, `.cpu()`, synchronise, polling.

While the host is blocked nothing is queued, so after every wait the GPU stands still until the host
has launched again. What the waits cost is what the window would lose if the host never waited: a
run that is launch-bound anyway would lose nothing. Where the host has fetched much data and works
on them, it is slow itself: it could not have gone on without.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent, time_text
from ridgeline.records.finding import TraceFinding

CAUSES = ("sync-bound",)
LEADS_FROM = 0.18
LEADS_BY = "worth"
_LEAST_SHARE = 0.02
_LEAST_COUNT = 3
_SURE, _MAY_USE_IT = 0.8, 0.55
"""Where nothing tells what the host of a program does after a wait, it may use what it waited for:
then it could not have gone on."""
_MOSTLY = 0.5
_EXPLAINS = 0.75
_AS_MUCH = 0.95
"""Python can be removed from a step, so that waits must be worth as much; dispatch cannot."""


def _gap_us(fact: RankFacts) -> float:
    """Idle time around the ends of waits and while the host polls, as far as they cause it."""
    around = fact.sync_gap_us + fact.idle["synchronise"]
    gap_us = min(around, fact.idle_of_host_us, fact.saved["synchronise"])
    return max(0.0, gap_us - fact.fetched_us)


def _saved_us(reading: TraceReading) -> float:
    """What the run would gain without waits, but for those whose data the host goes on to use."""
    fetched = reading.mean(lambda fact: fact.fetched_us)
    return max(0.0, reading.saved("synchronise") - fetched)


def _does_who_knows_what(reading: TraceReading, worst: RankFacts) -> bool:
    """Is most of the host's part of the idle time nothing that a profiler of calls records?"""
    of_host = reading.mean(lambda fact: fact.idle_of_host_us)
    return not worst.seen_by_torch and reading.idle("untraced") > _MOSTLY * of_host


def explains_the_host(reading: TraceReading) -> bool:
    """Would the run gain about as much without the waits as with a host that takes no time?

    Then the host is late because it waited, and is not slow.
    """
    waited, python = _saved_us(reading), reading.saved("python")
    least = max(_EXPLAINS * reading.saved("host"), _AS_MUCH * python)
    return (
        reading.share(_gap_us) >= LEADS_FROM
        and waited >= LEADS_FROM * reading.window_us
        and waited >= least
        and bool(find(reading))
    )


def find(reading: TraceReading) -> list[TraceFinding]:
    """Find gaps of the GPU after waits of the host."""
    if not reading.facts:
        return []
    share = reading.share(_gap_us)
    worst = reading.worst(_gap_us)
    count = sum(point.count for point in worst.sync_points)
    polled = reading.share(lambda fact: fact.idle["synchronise"])
    saved = _saved_us(reading)
    if saved < _LEAST_SHARE * reading.window_us:
        return []
    if share < _LEAST_SHARE or (count < _LEAST_COUNT and polled < _LEAST_SHARE):
        return []
    first = worst.sync_points[0] if worst.sync_points else None
    return [
        reading.finding(
            "sync-bound",
            of=_gap_us,
            worth_us=saved,
            confidence=_MAY_USE_IT if _does_who_knows_what(reading, worst) else _SURE,
            summary=f"After {count} waits of the host for the GPU, the GPU stands still for "
            f"{percent(share)} of the window; without them it would be {time_text(saved)} shorter"
            + (f"; the dearest at {first.operator or first.call} "
               f"({time_text(first.host_us)} blocked)." if first else "."),
            evidence={
                "saved_without_waits_us": saved,
                "waits": count,
                "blocked_us": reading.mean(lambda fact: fact.sync_blocked_us),
                "idle_while_the_host_waits_us": reading.idle("synchronise"),
            },
            where=[point.line or point.operator or point.call for point in worst.sync_points],
            cure="Keep values on the GPU (no .item(), .cpu(), nonzero in the step), copy with "
            "non_blocking=True from pinned memory, and read metrics a step later.",
        )
    ]  # fmt: skip
