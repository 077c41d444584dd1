"""The process sleeps between calls of its model: what it waits for is outside of it.

A server waits for requests, an agent for its environments, a reader for a file or a line typed.
The host is idle then, not busy: no core is used and none is asked for. Nothing that is done to the
model makes such a step shorter, so no gain is claimed; that it is so, and where, is the finding.
"""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, percent, warning
from ridgeline.records import Finding

CAUSES = ("waiting-outside",)

_LEAST_SHARE = 0.1
"""A process that sleeps for less of the step is only polite."""


def find(reading: Reading) -> list[Finding]:
    """Find time in which the process neither computes nor asks for a core."""
    asleep = reading.asleep_seconds
    if reading.share(asleep) < _LEAST_SHARE:
        return []
    served = reading.profile.kind == "inference"
    return warning(
        "waiting-outside",
        confidence=0.8,
        summary=f"For {duration(asleep)} of each step, {percent(reading.share(asleep))}, the "
        "process sleeps: it waits for something outside of it"
        + (" (a request, another process, a file)." if served else " (another process, a file)."),
        evidence={
            "asleep_seconds": asleep,
            "cpu_seconds": reading.profile.settings.cpu_seconds,
        },
        where=reading.hottest("other"),
        cure="Send requests as fast as they are answered to measure the model itself."
        if served
        else "Ask for the next input before this one is used: in a thread, or with two under way.",
        effort="code",
    )
