"""Most of the GPU's time in kernels whose names say nothing: what they do is not known.

A kernel that no rule of `trace/kernel_classes.toml` knows counts as computing, because most do. One
that talks to other ranks then makes computing too long and hides communication that nothing covers,
which matters most where there are other ranks.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent
from ridgeline.records.finding import TraceFinding
from ridgeline.trace.kernel_names import short_name

CAUSES = ("unknown-kernels",)
LEADS_BY = "share"
LEADS_FROM = 2.0
"""Never the first cause: it says how far the other findings can be trusted."""
_MUCH = 0.5


def _unknown_us(fact: RankFacts) -> float:
    classes = fact.kernels.classes if fact.kernels else []
    return sum(use.total_us for use in classes if use.name == "other")


def _unknown_share(fact: RankFacts) -> float:
    return fact.kernels.unknown_share if fact.kernels else 0.0


def find(reading: TraceReading) -> list[TraceFinding]:
    """Find that half of the kernels' time or more is in kernels that nobody knows."""
    if not reading.facts or max(map(_unknown_share, reading.facts)) < _MUCH:
        return []
    worst = max(reading.facts, key=_unknown_share)
    names = worst.kernels.unknown_names if worst.kernels else []
    ranks = max(len(reading.facts), *(fact.collectives.world_size or 1 for fact in reading.facts))
    counted = (
        "compute and overlap figures may count communication between the "
        f"{ranks} ranks as computing"
        if ranks > 1
        else "compute and overlap figures count them as computing, whatever they do"
    )
    return [
        reading.finding(
            "unknown-kernels",
            of=lambda fact: min(_unknown_us(fact), fact.window_us),
            worth_us=0.0,
            confidence=0.9,
            summary=f"{percent(_unknown_share(worst))} of the kernels' time is in kernels whose "
            f"names say nothing, most of it in {short_name(names[0])}: {counted}.",
            evidence={
                "unknown_us": reading.mean(_unknown_us),
                "unknown_share_of_kernels": _unknown_share(worst),
                "traced_ranks": len(reading.facts),
                "world_size": ranks,
            },
            where=[short_name(name)[:120] for name in names],
            cure="Look at what these kernels are before you trust the shares: a library that talks "
            "to other ranks is communication. Time them in a region of their own "
            "(torch.profiler.record_function).",
        )
    ]
