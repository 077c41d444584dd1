"""Kernels so short that the gaps between them weigh as much as they do."""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent
from ridgeline.records.finding import TraceFinding

CAUSES = ("small-kernels",)
LEADS_FROM = 0.30
LEADS_BY = "share"
_LEAST_SHARE = 0.02
_MANY = 0.3


def _small_us(fact: RankFacts) -> float:
    return fact.small_us + fact.summary.kernel_wait_us


def find(reading: TraceReading) -> list[TraceFinding]:
    """Time in kernels under 5 µs and in launch gaps."""
    share = reading.share(_small_us)
    small = max((f.kernels.under_5us_share for f in reading.facts if f.kernels), default=0.0)
    if share < _LEAST_SHARE or small < _MANY:
        return []
    return [
        reading.finding(
            "small-kernels",
            of=_small_us,
            worth_us=reading.mean(lambda fact: fact.summary.kernel_wait_us),
            confidence=0.7,
            summary=f"{percent(small)} of the kernels run for less than 5 µs; they and the gaps "
            f"between queued kernels take {percent(share)} of the window.",
            evidence={
                "kernels_under_5us_share": small,
                "in_small_kernels_us": reading.mean(lambda fact: fact.small_us),
                "launch_gaps_us": reading.mean(lambda fact: fact.summary.kernel_wait_us),
            },
            cure="Fuse them: torch.compile, foreach or fused optimizers, larger batches.",
        )
    ]
