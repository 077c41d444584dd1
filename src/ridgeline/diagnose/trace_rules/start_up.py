"""The GPU waits while the host initialises what it will not initialise again.

Calls of a millisecond or more that allocate, load modules, create streams, and first launches of a
kernel, which load it. They come once: memory that is allocated and freed throughout is
`allocator-bound`.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent
from ridgeline.records.finding import TraceFinding

CAUSES = ("host-bound-start-up",)
LEADS_FROM = 0.12
LEADS_BY = "worth"
_LEAST_SHARE = 0.03
_BY_TORCH = (
    "Profile after a few warm-up steps (torch.profiler.schedule(wait, warmup, active)): this trace "
    "says little about a steady step."
)
_BY_NSYS = (
    "Do a round before what is measured (cudaProfilerStart after it, nsys profile "
    "--capture-range=cudaProfilerApi): this trace says little about a steady round."
)
_ALL_THERE_IS = 20.0
"""A start that lasts for so many times all the rest is what such a program does."""


def _start_up_us(fact: RankFacts) -> float:
    return fact.idle["start_up"]


def _arguable(fact: RankFacts) -> bool:
    """Does it come before the first event of a program without steps, which goes on for a while?

    Whoever wants to know of its kernels leaves it out.
    """
    edge, start_us = fact.edge_gap, _start_up_us(fact)
    if fact.summary.steps or edge is None or edge.place != "before" or edge.us < 0.5 * start_us:
        return False
    return start_us < _ALL_THERE_IS * (fact.window_us - start_us)


def find(reading: TraceReading) -> list[TraceFinding]:
    """GPU idle inside calls that come once."""
    share = reading.share(_start_up_us)
    if share < _LEAST_SHARE:
        return []
    worst = reading.worst(_start_up_us)
    return [
        reading.finding(
            "host-bound-start-up",
            of=_start_up_us,
            worth_us=reading.saved("start_up"),
            confidence=0.55 if worst.starts_unseen or _arguable(worst) else 0.85,
            summary=f"{percent(share)} of the window is start-up: the GPU waits while the host "
            f"initialises ({', '.join(worst.start_up_calls[:2])}).",
            evidence={
                "start_up_us": reading.mean(_start_up_us),
                "start_up_share": share,
                "rest_of_the_hosts_idle_us": reading.mean(
                    lambda fact: fact.idle_of_host_us - _start_up_us(fact)
                ),
            },
            where=worst.start_up_calls,
            cure=_BY_TORCH if worst.seen_by_torch else _BY_NSYS,
        )
    ]
