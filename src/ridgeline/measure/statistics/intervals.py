"""What repeated step times can prove: intervals for ratios, and when a step time has settled.

Ratios follow one convention: time of the reference over time of the candidate, so above 1 the
candidate is faster. Step times are skewed, spiky and correlated from step to step, so nothing
here assumes a normal distribution:

- `ratio_interval`: interleaved A/B rounds. Hodges-Lehmann estimate over the log ratios, with the
  interval from inverting Wilcoxon's signed-rank test (Hollander, Wolfe, Chicken, *Nonparametric
  Statistical Methods*, 3rd ed., 2014, sections 3.2 and 3.3).
- `bootstrap_ratio`: two runs that were not interleaved. Moving-block bootstrap (Künsch, "The
  jackknife and the bootstrap for general stationary observations", Annals of Statistics 17, 1989)
  with the expanded percentile interval (Hesterberg, "What teachers should know about the
  bootstrap", The American Statistician 69, 2015).
- `steady_start`: the step from which the medians of neighbouring windows agree.

Pure arithmetic on numbers that were passed in: no clock, no torch, and the same answer each time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ridgeline import quantity

Array = NDArray[np.float64]
Statistic = Literal["median", "mean"]

EXACT_ROUNDS = 50
"""Up to here the signed-rank distribution is counted; above, it is as good as normal."""
BOOTSTRAP_DRAWS = 2000
MOST_CELLS = 4_000_000
"""Numbers drawn at a time."""
SMALLEST_BOOTSTRAP = 6
"""Fewer samples than this say nothing about their own spread."""
WINDOW = 5
"""Steps in the smallest window that a step time is judged by; two of them make a verdict."""
LARGEST_WINDOW = 20
LEVEL_TOLERANCE = 0.03
"""Windows whose medians are this close (3 %) are level however quiet the noise is."""
NORMAL_FROM_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
MEDIAN_FROM_MEAN_ERROR = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, for normal noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioInterval:
    """A ratio of times, reference over candidate, and how far it can be trusted."""

    ratio: float
    low: float
    """0 where the data cannot bound the ratio from below at the confidence asked for."""
    high: float
    """`math.inf` where the data cannot bound it from above."""
    rounds: int
    """Pairs, or samples on the smaller side, behind the interval."""

    @property
    def in_words(self) -> str:
        """The ratio with its bounds; those that say nothing are left out.

        >>> RatioInterval(ratio=2.0, low=1.5, high=2.5, rounds=5).in_words
        '2.000× [1.500, 2.500]'
        >>> RatioInterval(ratio=2.0, low=2e-7, high=9e6, rounds=3).in_words
        '2.000×, of which nothing is certain'
        """
        if self.high > quantity.MOST_APART * self.low and self.high >= 1.0:
            return f"{self.ratio:.3f}×, of which nothing is certain"
        return f"{self.ratio:.3f}× [{self.low:.3f}, {self.high:.3f}]"


def ratio_interval(
    baseline_rounds: Sequence[float],
    candidate_rounds: Sequence[float],
    confidence: float = 0.95,
) -> RatioInterval:
    """Speed-up of the candidate from interleaved rounds: entry i of both ran side by side.

    Assumes only that the log ratios are independent and symmetric about their centre. Where the
    rounds are too few for the confidence (fewer than 6 at 95 %), no interval of that confidence
    exists and the answer is (0, inf): nothing can be kept on such evidence.

    >>> ratio_interval([2.0, 2.2, 1.9, 2.1, 2.0, 2.0], [1.0, 1.1, 1.0, 1.0, 1.0, 1.0]).ratio
    2.0
    """
    if len(baseline_rounds) != len(candidate_rounds):
        raise ValueError("interleaved rounds come in pairs: both sides must have as many")
    _check_confidence(confidence)
    differences = log_times(baseline_rounds) - log_times(candidate_rounds)
    rounds = len(differences)
    rows, columns = np.triu_indices(rounds)
    walsh = np.sort((differences[rows] + differences[columns]) / 2)
    rank = _signed_rank_critical(rounds, (1 - confidence) / 2)
    bounded = rank > 0
    return RatioInterval(
        ratio=float(np.exp(np.median(walsh))),
        low=float(np.exp(walsh[rank - 1])) if bounded else 0.0,
        high=float(np.exp(walsh[len(walsh) - rank])) if bounded else math.inf,
        rounds=rounds,
    )


def _signed_rank_critical(rounds: int, tail: float) -> int:
    """How many Walsh averages to leave out on each side, plus one; 0 when there is no interval.

    With T the signed-rank statistic under no difference, it is the largest k for which
    P(T <= k - 1) <= tail.
    """
    largest = rounds * (rounds + 1) // 2
    if rounds > EXACT_ROUNDS:
        deviation = math.sqrt(largest * (2 * rounds + 1) / 12)
        return max(0, math.floor(largest / 2 + NormalDist().inv_cdf(tail) * deviation))
    # Each rank is in the positive sum or not: counts[t] is the number of subsets with sum t.
    counts = np.zeros(largest + 1)
    counts[0] = 1
    for rank in range(1, rounds + 1):
        counts[rank:] = counts[rank:] + counts[:-rank]
    cumulative = np.cumsum(counts) / 2.0**rounds
    return int(np.searchsorted(cumulative, tail, side="right"))


def bootstrap_ratio(
    a_samples: Sequence[float],
    b_samples: Sequence[float],
    confidence: float = 0.95,
    seed: int = 0,
    statistic: Statistic = "median",
) -> RatioInterval:
    """Speed-up of b over a (a / b) from per-step times of two separate runs.

    The median is the default because a handful of long steps (an evaluation, a checkpoint, a
    busy neighbour) must not decide; "mean" answers for the wall time of the whole run, spikes
    included. Whole blocks of steps are drawn, so that a slow stretch counts as one event and not
    as many; the interval is the expanded percentile one (BCa's jackknife is inconsistent for a
    median). Fewer than 6 samples on a side bound nothing: (0, inf).
    """
    _check_confidence(confidence)
    first, second = np.exp(log_times(a_samples)), np.exp(log_times(b_samples))
    centre = _centre(first, statistic) / _centre(second, statistic)
    smaller = min(len(first), len(second))
    if smaller < SMALLEST_BOOTSTRAP:
        return RatioInterval(ratio=float(centre), low=0.0, high=math.inf, rounds=smaller)
    generator = np.random.default_rng(seed)
    draws = _block_draws(first, generator, statistic) / _block_draws(second, generator, statistic)
    blocks = min(len(samples) // block_length(samples) for samples in (first, second))
    tail = _expanded_tail((1 - confidence) / 2, max(blocks, 2))
    low, high = np.quantile(draws, (tail, 1 - tail))
    return RatioInterval(ratio=float(centre), low=float(low), high=float(high), rounds=smaller)


def block_length(samples: Array) -> int:
    """Steps that make one block: n^(1/3), or longer where neighbouring steps resemble each other.

    The integrated autocorrelation time tau of the signs about the median is the number of steps
    that are worth one independent step; the sum stops at the first lag that is lost in noise.
    Signs, because they are what moves a median, and because spikes do not drown them.
    """
    count = len(samples)
    signs = np.sign(samples - np.median(samples))
    power = float(signs @ signs)
    tau = 1.0
    if power > 0:
        for lag in range(1, count // 4):
            correlation = float(signs[:-lag] @ signs[lag:]) / power
            if correlation < 2 / math.sqrt(count):
                break
            tau += 2 * correlation
    return max(math.ceil(math.cbrt(count)), min(math.ceil(tau * 2), count // 4), 1)


def _block_draws(samples: Array, generator: np.random.Generator, statistic: Statistic) -> Array:
    """`statistic` of each of many series put together from randomly chosen blocks."""
    count, length = len(samples), block_length(samples)
    starts = generator.integers(
        0, count - length + 1, size=(BOOTSTRAP_DRAWS, math.ceil(count / length))
    )
    draws = []
    # A few series at a time: all of them at once would be gigabytes for a long run.
    for some in np.array_split(starts, math.ceil(BOOTSTRAP_DRAWS * count / MOST_CELLS)):
        index = (some[:, :, None] + np.arange(length)).reshape(len(some), -1)[:, :count]
        draws.append(_centre(samples[index], statistic))
    return np.concatenate(draws)


def _centre(samples: Array, statistic: Statistic) -> Array:
    if statistic == "mean":
        return np.asarray(samples.mean(axis=-1))
    return np.asarray(np.median(samples, axis=-1))


def _expanded_tail(tail: float, blocks: int) -> float:
    """The tail by Hesterberg's correction, for intervals too narrow by t / z and sqrt(n/(n-1)).

    The quantile of Student's t is Fisher and Cornish's expansion about the normal one, to the
    second order in 1 / freedom.
    """
    freedom = blocks - 1
    z = NormalDist().inv_cdf(tail)
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return NormalDist().cdf(t * math.sqrt(blocks / freedom))


def is_steady(samples: Sequence[float]) -> bool:
    """Has the step time settled at the end of `samples`, so that timing may begin?

    Looks at the newest two windows only, so it is cheap enough to ask after every step.
    """
    return _newest_level(samples) is not None


LEVEL_STEPS, LEVEL_WITHIN, NO_RECORD = 3, 0.10, 0.95


def is_level(samples: Sequence[float]) -> bool:
    """Has what takes long at the start ended? Enough where two windows would take long.

    The last three are within 10 % of each other; or, where noise is larger than that, the last
    two are no faster than the fastest before them, the very first step left out.
    """
    last = samples[-LEVEL_STEPS:]
    if len(last) == LEVEL_STEPS and max(last) < (1 + LEVEL_WITHIN) * min(last):
        return True
    before, newest = samples[1:-2], samples[-2:]
    return bool(before) and min(newest) >= NO_RECORD * min(before)


def _newest_level(samples: Sequence[float]) -> tuple[float, float] | None:
    """Log level and noise of the newest two windows, None where they disagree or are missing."""
    count = len(samples)
    window = min(max(WINDOW, count // 4), LARGEST_WINDOW)
    if count < 2 * window:
        return None
    logs = log_times(samples[-2 * window :])
    noise = step_noise(logs)
    step = float(np.median(logs[window:]) - np.median(logs[:window]))
    if abs(step) > max(LEVEL_TOLERANCE, 3 * math.sqrt(2) * _median_error(noise, window)):
        return None
    return float(np.median(logs)), noise


def step_noise(logs: Array) -> float:
    """Standard deviation from step to step, blind to slow trends and to rare spikes.

    The median is not taken off the differences first: of strictly alternating steps (two losses
    taken in turn) every difference is the same size, and that is noise here, not quiet.
    """
    return NORMAL_FROM_MAD * float(np.median(np.abs(np.diff(logs)))) / math.sqrt(2)


def _median_error(noise: float, count: int) -> float:
    return MEDIAN_FROM_MEAN_ERROR * noise / math.sqrt(count)


def log_times(samples: Sequence[float] | Array) -> Array:
    """Logarithms of one or more times; anything but finite times above zero is an error."""
    array = np.asarray(samples, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError("needs at least one time")
    if not np.all(np.isfinite(array) & (array > 0)):
        raise ValueError("times must be finite and above zero")
    return np.log(array)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
