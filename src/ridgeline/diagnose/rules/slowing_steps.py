"""Every step takes longer than the one before: something that the step works through grows.

Steps in order of time that are also in order of duration (Spearman's rank correlation) are no
noise, and no warm-up, which gets faster.
"""

from __future__ import annotations

import numpy as np

from ridgeline.diagnose.reading import Reading, duration, percent
from ridgeline.records import Finding

CAUSES = ("slowing-steps",)

_LEAST_STEPS = 10
_IN_ORDER = 0.85
_LEAST_GROWTH = 0.1


def find(reading: Reading) -> list[Finding]:
    """A step time that rises through the timed steps by a tenth or more."""
    settings = reading.profile.settings
    if settings.autograd_profiler or reading.profile.habit("retain_graph").calls > 0:
        return []  # both grow with every step, and are causes of their own
    samples = np.asarray(reading.profile.step_samples)
    if len(samples) < _LEAST_STEPS or _rank_correlation(samples) < _IN_ORDER:
        return []
    part = max(2, len(samples) // 4)
    first, last = float(np.median(samples[:part])), float(np.median(samples[-part:]))
    growth = last / first - 1
    if growth < _LEAST_GROWTH:
        return []
    usual = float(np.median(samples))
    lost = reading.step_seconds * max(0.0, 1 - first / usual)
    return reading.finding(
        "slowing-steps",
        touched_seconds=lost,
        # The run is longer than the steps that were timed, so it gets worse than what was seen.
        saves_seconds=(lost, reading.step_seconds * (1 - first / last)),
        confidence=0.75,
        summary=f"Steps take longer and longer: {duration(first)} at first, {duration(last)} "
        f"after {len(samples)} more, {percent(growth)} longer.",
        evidence={
            "first_seconds": first,
            "last_seconds": last,
            "num_steps": len(samples),
            "growth_bytes": int(reading.profile.memory_growth_bytes_per_step),
        },
        where=reading.hottest("other", "forward"),
        cure="Find what grows: a list, a buffer that is concatenated to, a graph that reaches back "
        "through earlier steps; bound it or detach it.",
        effort="code",
    )


def _rank_correlation(samples: np.ndarray) -> float:
    """Spearman's correlation of the samples with their order."""
    ranks = np.argsort(np.argsort(samples))
    return float(np.corrcoef(ranks, np.arange(len(samples)))[0, 1])
