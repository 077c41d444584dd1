"""What the slow steps of a run have in common: when they came, in which phase, of what size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.measure.wire import StepTimes
from ridgeline.records.profile import TailFacts

SLOW = 1.5
"""A step is slow that takes this many times the median."""


def tail_facts(steps: Sequence[StepTimes]) -> TailFacts:
    """Of at least one timed step."""
    seconds = np.asarray([step.seconds for step in steps])
    middle = float(np.median(seconds))
    slow = seconds > SLOW * middle
    excess = np.where(slow, seconds - middle, 0.0)
    total = float(excess.sum())
    early = max(1, len(steps) // 10)
    names = dict.fromkeys(name for step in steps for name in step.phases)
    beyond: dict[str, float] = {}
    for name in names:
        phase = np.asarray([step.phases.get(name, 0.0) for step in steps])
        beyond[name] = float((phase[slow] - np.median(phase)).sum())
    sizes = np.asarray([step.tokens or step.samples for step in steps])
    return TailFacts(
        slow_steps=int(slow.sum()),
        excess_seconds=total,
        early_share=float(excess[:early].sum()) / total if total else 0.0,
        phase_seconds=beyond,
        size_correlation=_in_step(seconds, sizes),
    )


def _in_step(seconds: np.ndarray, sizes: np.ndarray) -> float | None:
    """Spearman's rank correlation over the largest that these sizes allow; None: all are equal.

    Equal sizes share a rank. Where one call in eight is long and the others equal, even times in
    perfect step with the sizes correlate by 0.57 only.
    """
    if len(set(sizes.tolist())) < 2:
        return None
    timed, sized = _ranks(seconds), _ranks(sizes)
    largest = float(np.corrcoef(np.sort(timed), np.sort(sized))[0, 1])
    return float(np.corrcoef(timed, sized)[0, 1]) / largest


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]
