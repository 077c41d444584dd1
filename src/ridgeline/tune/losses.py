"""Does a changed run still train the same model? Loss trajectories, step by step.

Baseline and candidate run the same script with the same seeds on the same batches, so their
losses agree as far as the equivalence of the technique goes:

- `bit-equal`          every loss is the same number;
- `rounding`           sums in another order, in float32;
- `reduced-precision`  products rounded to the mantissa of bfloat16;
- `quantised`          weights and activations of inference in 8 bits
- `statistical`        other random draws (the order of batches, the workers' generators).

What rounding does to *this* script is not guessed, it is measured: the baseline runs once more
with its parameters and gradients disturbed by as much (`measure/child/shake.py`), and the
candidate may part from the baseline by a few times what the disturbed run does, in each stretch
of steps. A stable script is held to parts of a million, a chaotic one only as long as chaos
leaves something to compare; a wrong loss, a lost gradient or a forgotten state lies 10 to 10,000
times further out. Only `statistical` is judged by the spread from seed to seed.

A script that does not repeat itself under one seed cannot be bit-equal to anything; what two
equal runs of it differ by is allowed on top. Inference scripts hand in a projection of their
outputs in place of losses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ridgeline.records import LossCheck

Array = NDArray[np.float64]

SHAKES: Mapping[str, float] = MappingProxyType({"rounding": 2.0**-18, "reduced-precision": 2.0**-8})
"""Equivalence → relative size of the disturbance that it is compared with.

float32 rounds by 2**-24, and a sum of 2**12 terms in another order moves by about the root of that
many roundings.
"""
TIMES_SHAKEN: Mapping[str, float] = MappingProxyType({"rounding": 6.0, "reduced-precision": 9.0})
"""How often further than the disturbed run a candidate may part.

Of 72 right changes of four small trainings under eight seeds, those that only round stayed below
2.4. Autocast parts by up to 6.4 in a small dense network under momentum, whose weights round to
the same side for many steps. What passes so far is told by its updates (`updates.py`).
"""
LEAN_SHAKEN: Mapping[str, float] = MappingProxyType({"rounding": 4.0, "reduced-precision": 7.0})
"""The same for the mean of a stretch to the worse side."""
FLOORS: Mapping[str, float] = MappingProxyType({"rounding": 1e-6, "reduced-precision": 4e-5})
"""Relative difference that is never called a change: the loss is itself a rounded sum.

What bfloat16 rounds to the same side for every token (positions, biases) does not average out as
noise does: Transformer-XL parts by 0.02 % in its first steps. Of 91 planted mistakes three pass
with this floor, two with half of it, six with six times as much."""
STRETCHES = (0, 3, 8, 16, 40)
"""Steps at which a stretch begins: short ones first, where chaos has not grown yet."""
FLOOR = 0.01
"""Relative difference that is never called a change of the result for statistical techniques,
when the script gives no seed spread to compare with."""
LEAST_SQNR_OF_PROJECTIONS = 10.0
"""dB of a trajectory of quantised outputs' projections: each is a mean over a whole output, in
which the signal cancels and the noise does not, so it lies below that of the outputs."""
LEAN_SIGMAS = 3.0
_SHORT_MANTISSA = 11
"""Bits of float16's; a mean of a few losses in bfloat16 (8 bits) fits too."""
_TELLING_LOSSES = 4
_UNTOLD = "losses differ, and the run that tells rounding from error could not be made"


def check_losses(
    equivalence: str,
    baseline: list[float],
    candidate: list[float],
    *,
    shaken: list[float] | None = None,
    seeds: list[list[float]] | None = None,
    repeat: list[float] | None = None,
) -> LossCheck:
    """Compare two trajectories under a equivalence.

    Args:
        equivalence: `bit-equal`, `rounding`, `reduced-precision` or `statistical`.
        baseline: Losses of the incumbent by step.
        candidate: Losses of the changed run by step.
        shaken: Trajectory of the baseline, disturbed by the equivalence's size in `SHAKES`.
        seeds: Trajectories of the baseline under other seeds, for the seed-to-seed spread.
        repeat: A second trajectory of the baseline under the same seed.
    """
    steps = min(len(baseline), len(candidate))
    base = np.array(baseline[:steps], dtype=np.float64)
    other = np.array(candidate[:steps], dtype=np.float64)
    spread = seed_spread(baseline, seeds or [])
    largest = float(np.nanmax(np.abs(other - base), initial=0.0)) if steps else 0.0
    noise = _repeat_noise(baseline, repeat)
    passed, summary = _judge(equivalence, base, other, shaken, spread, noise)
    return LossCheck(
        passed=passed,
        kind=equivalence,
        summary=summary,
        steps=steps,
        max_abs_difference=largest,
        seed_spread=spread,
        baseline=baseline[:steps],
        candidate=candidate[:steps],
        shaken=list(shaken or [])[:steps],
        untold=summary == _UNTOLD,
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
    equivalence: str,
    base: Array,
    other: Array,
    shaken: list[float] | None,
    spread: float | None,
    noise: float,
) -> tuple[bool, str]:
    if len(base) == 0:
        return False, "no losses were seen, so nothing could be verified"
    gained_bad = ~np.isfinite(other) & np.isfinite(base)
    if gained_bad.any():
        step = int(np.argmax(gained_bad))
        return False, f"loss is not finite at step {step}; the baseline's is"
    both = np.isfinite(base) & np.isfinite(other)
    if (other[both] == base[both]).all():
        return True, f"losses bit-equal over {len(base)} steps"
    if _is_coarser(base[both], other[both]):
        return False, "the loss itself is rounded to 16 bits; the baseline's is not"
    if equivalence == "bit-equal" and noise == 0.0:
        step = int(np.argmax(base != other))
        return False, f"losses should be bit-equal, and differ from step {step} on"
    gap = np.where(both, other - base, 0.0)
    scale = max(_rms(base[both]), 1e-12) if both.any() else 1.0
    if equivalence == "quantised":
        return _within_noise(gap, scale)
    if equivalence in SHAKES:
        return _within_shaken(equivalence, base, gap, shaken, scale, noise)
    return _within_spread(gap, scale, spread, noise)


def _within_shaken(
    equivalence: str,
    base: Array,
    gap: Array,
    shaken: list[float] | None,
    scale: float,
    noise: float,
) -> tuple[bool, str]:
    """Does the candidate stay about as near as the disturbed run does?"""
    floor = FLOORS[equivalence] * scale + 3 * noise
    if _rms(gap) <= floor:
        return True, f"RMS loss difference {_rms(gap):.2g}, within {floor:.2g} of rounding"
    moved = np.abs(np.array((shaken or [])[: len(base)]) - base[: len(shaken or [])])
    moved = moved[np.isfinite(moved)]
    if len(moved) == 0:
        return False, _UNTOLD
    reach = floor
    worst = 0.0
    for first, end in _stretches(len(base)):
        # Once parted by rounding, two runs do not come together again but by chance.
        reach = max(reach, _rms(moved[first:end]) if first < len(moved) else 0.0)
        part = gap[first:end]
        size, lean = _rms(part), float(np.mean(part))
        worst = max(worst, size / reach)
        if size > TIMES_SHAKEN[equivalence] * reach or lean > LEAN_SHAKEN[equivalence] * reach:
            return False, (
                f"losses of steps {first} to {end - 1} part by {size:.2g}, {size / reach:.0f}"
                f" times what {_NAMES[equivalence]} does to this script ({reach:.2g})"
            )
    return True, (
        f"losses part by at most {worst:.1f} times what {_NAMES[equivalence]} does to this script"
        f" (RMS {_rms(gap):.2g})"
    )


def _within_noise(gap: Array, scale: float) -> tuple[bool, str]:
    """Is the noise of 8 bits as small against the outputs as it may be?

    Each output was compared when the program was made; this is what came of it over the steps.
    """
    size, most = _rms(gap), scale * 10 ** (-LEAST_SQNR_OF_PROJECTIONS / 20)
    words = f"outputs part by {size:.2g} (RMS of their projections), allowed {most:.2g}"
    return size <= most, words


_NAMES = {"rounding": "rounding", "reduced-precision": "rounding to bfloat16"}


def _stretches(steps: int) -> list[tuple[int, int]]:
    """Half-open ranges of steps that are judged each for itself."""
    begins = [begin for begin in STRETCHES if begin < steps]
    return list(zip(begins, [*begins[1:], steps], strict=True))


def _is_coarser(base: Array, other: Array) -> bool:
    """Do all of the candidate's losses fit in a 16-bit format, and the baseline's do not?"""
    if len(other) < _TELLING_LOSSES or len(np.unique(other)) < 2:
        return False
    return bool(_fits(other).all() and _fits(base).mean() < 0.5)


def _fits(values: Array) -> NDArray[np.bool_]:
    """Which values have a short mantissa."""
    mantissa = np.frexp(values)[0] * 2.0**_SHORT_MANTISSA
    exact: NDArray[np.bool_] = mantissa == np.round(mantissa)
    return exact


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
