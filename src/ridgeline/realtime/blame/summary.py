"""Causes of misses, counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from importlib import resources
from statistics import median

import msgspec

from ridgeline.records.realtime_blame import CauseCount, MissCause

_FIRST_FRAMES = 5


def count_causes(causes: Sequence[MissCause]) -> list[CauseCount]:
    """The causes of a run, those that cost most frames first."""
    groups: defaultdict[tuple[str, str], list[MissCause]] = defaultdict(list)
    for cause in causes:
        groups[cause.place, cause.kind].append(cause)
    counts = [_count(group, len(causes)) for group in groups.values()]
    return sorted(counts, key=lambda count: (-count.misses, -count.worst_excess_seconds))


def _count(group: list[MissCause], misses: int) -> CauseCount:
    worst = max(group, key=lambda cause: cause.excess_seconds)
    beside = Counter(cause.co_runner for cause in group if cause.co_runner)
    co_runner = beside.most_common(1)[0][0] if beside else ""
    return CauseCount(
        place=worst.place,
        kind=worst.kind,
        co_runner=co_runner,
        misses=len(group),
        share=len(group) / misses,
        median_excess_seconds=median(cause.excess_seconds for cause in group),
        worst_excess_seconds=worst.excess_seconds,
        frames=tuple(cause.frame for cause in group[:_FIRST_FRAMES]),
        evidence=worst.evidence,
        cure=_cures()[worst.kind].format(
            place=worst.place, co_runner=co_runner or "what runs beside it"
        ),
    )


@cache
def _cures() -> dict[str, str]:
    text = resources.files("ridgeline.realtime.blame").joinpath("cures.toml").read_text()
    return msgspec.toml.decode(text, type=dict[str, str])
