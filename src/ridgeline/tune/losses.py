"""Does the changed run still train the same model? Loss trajectories, step by step.

Baseline and candidate run the same script with the same seeds on the same batches, so their
losses should agree as far as the technique's promise goes:

- `bit-equal`   every loss is the same number;
- `rounding`    the first steps agree to a few units of float32 rounding, grown by the steps
                between; later ones stay within what another seed would change;
- `statistical` the difference stays within the baseline's own spread from seed to seed, and
                does not lean to the worse side.

A script that does not repeat itself under one seed cannot be bit-equal to anything; what two
equal runs of it differ by is allowed on top. Inference scripts hand in a projection of their
outputs in place of losses.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ridgeline.records import LossCheck

Array = NDArray[np.float64]

EARLY_STEPS = 3
ROUNDING = 2e-3
"""Relative difference of the first steps that reordered float32 (or TF32-free) sums explain."""
FLOOR = 0.01
"""Relative difference that is never called a change of the result for statistical techniques,
when the script gives no seed spread to compare with."""
LEAN_SIGMAS = 3.0


def check_losses(
    promise: str,
    baseline: list[float],
    candidate: list[float],
    *,
    seeds: list[list[float]] | None = None,
    repeat: list[float] | None = None,
) -> LossCheck:
    """Compare two trajectories under a promise.

    Args:
        promise: `bit-equal`, `rounding` or `statistical`.
        baseline: Losses of the incumbent by step.
        candidate: Losses of the changed run by step.
        seeds: Trajectories of the baseline under other seeds, for the seed-to-seed spread.
        repeat: A second trajectory of the baseline under the same seed.
    """
    steps = min(len(baseline), len(candidate))
    base = np.array(baseline[:steps], dtype=np.float64)
    other = np.array(candidate[:steps], dtype=np.float64)
    spread = seed_spread(baseline, seeds or [])
    largest = float(np.nanmax(np.abs(other - base), initial=0.0)) if steps else 0.0
    passed, summary = _judge(promise, base, other, spread, _repeat_noise(baseline, repeat))
    return LossCheck(
        passed=passed,
        kind=promise,
        summary=summary,
        steps=steps,
        max_abs_difference=largest,
        seed_spread=spread,
        baseline=baseline[:steps],
        candidate=candidate[:steps],
    )


def seed_spread(baseline: list[float], seeds: list[list[float]]) -> float | None:
    """RMS difference between the baseline and itself under other seeds; None without any."""
    gaps = []
    for trajectory in seeds:
        steps = min(len(baseline), len(trajectory))
        if steps:
            gap = np.array(trajectory[:steps]) - np.array(baseline[:steps])
            gaps.append(gap[np.isfinite(gap)])
    joined = np.concatenate(gaps) if gaps else np.array([])
    return _rms(joined) if len(joined) else None


def _judge(
    promise: str, base: Array, other: Array, spread: float | None, noise: float
) -> tuple[bool, str]:
    if len(base) == 0:
        return False, "no losses were seen, so nothing could be verified"
    gained_bad = ~np.isfinite(other) & np.isfinite(base)
    if gained_bad.any():
        step = int(np.argmax(gained_bad))
        return False, f"loss is not finite at step {step}; the baseline's is"
    both = np.isfinite(base) & np.isfinite(other)
    gap = (other - base)[both]
    scale = max(_rms(base[both]), 1e-12) if both.any() else 1.0
    if (other[both] == base[both]).all():
        return True, f"losses bit-equal over {len(base)} steps"
    if promise == "bit-equal" and noise == 0.0:
        step = int(np.argmax(base != other))
        return False, f"promised bit-equal losses, differs from step {step} on"
    if promise == "rounding":
        early = float(np.max(np.abs(gap[:EARLY_STEPS]))) / scale
        if early > max(ROUNDING, 2 * noise / scale):
            return False, f"first losses differ by {early:.1e} relative, more than rounding"
    return _within_spread(gap, scale, spread, noise)


def _within_spread(
    gap: Array, scale: float, spread: float | None, noise: float
) -> tuple[bool, str]:
    allowed = max(spread or 0.0, FLOOR * scale if spread is None else 1e-3 * scale, 2 * noise)
    size = _rms(gap)
    name = "seed-to-seed spread" if spread else f"{FLOOR:.0%} of the loss"
    if size > allowed:
        return False, f"RMS loss difference {size:.2g} exceeds the {name} {allowed:.2g}"
    late = gap[len(gap) // 2 :]
    lean = float(np.mean(late))
    bound = LEAN_SIGMAS * allowed / math.sqrt(max(len(late), 1)) + 1e-3 * scale
    if lean > bound:
        return False, f"losses lean upward by {lean:.2g} (allowed {bound:.2g})"
    return True, f"RMS loss difference {size:.2g} within the {name} {allowed:.2g}"


def _repeat_noise(baseline: list[float], repeat: list[float] | None) -> float:
    if not repeat:
        return 0.0
    steps = min(len(baseline), len(repeat))
    gap = np.array(baseline[:steps]) - np.array(repeat[:steps])
    return _rms(gap[np.isfinite(gap)])


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else 0.0
