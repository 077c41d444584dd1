"""Where a series of results changed: jumps and slow drifts, in a history of noisy step times.

Two questions, asked in this order:

1. Did anything change at all? A permutation test: if nothing did, the entries could have come in
   any order, so the best fit of any jump or ramp to the true order is compared with the best fits
   to shuffled orders (the test of E-divisive: Matteson and James, "A nonparametric approach for
   multiple change point analysis of multivariate data", JASA 109, 2014). Its rate of false alarms
   is `significance`, whatever the noise looks like; outliers are clipped first.
2. Where? Optimal partitioning (Jackson et al., "An algorithm for optimal partitioning of data on
   an interval", IEEE Signal Processing Letters 12, 2005) into pieces that are level or drift
   linearly, with a price per piece that grows with log n (as in BIC).

Logarithms throughout: a change is a ratio. Deterministic: the shuffles are seeded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ridgeline.measure.statistics.intervals import NORMAL_FROM_MAD, log_times, step_noise

Array = NDArray[np.float64]

FEWEST_ENTRIES = 8
"""Below this no order of the entries is surprising enough."""
SHUFFLES = 999
CLIP = 3.0
"""Entries count at most as this many standard deviations from the median."""
SHORTEST_LEVEL = 2
SHORTEST_DRIFT = 6
LEVEL_PRICE = 3.0
"""Price of one more level piece, in noise variances times log n."""
DRIFT_PRICE = 1.5
"""What a slope costs beyond a level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSegment:
    """A stretch of the series over which nothing changed, or changed at one rate."""

    start: int
    end: int
    """One past its last entry."""
    first_value: float
    """The fitted value at `start`."""
    last_value: float
    """The fitted value at the last entry; differs from the first only in a drift."""

    @property
    def drifts(self) -> bool:
        """Whether it is a drift, and not a level."""
        return self.first_value != self.last_value

    def value_at(self, index: int) -> float:
        """The fitted value at an entry of this segment."""
        if self.end - self.start < 2:
            return self.first_value
        part = (index - self.start) / (self.end - 1 - self.start)
        return self.first_value * math.pow(self.last_value / self.first_value, part)


def segments(
    values: Sequence[float], *, significance: float = 0.01, seed: int = 0
) -> list[SeriesSegment]:
    """The series in pieces that are level or drift; one level piece when it is only noise."""
    logs = log_times(values)
    whole = SeriesSegment(
        start=0,
        end=len(logs),
        first_value=math.exp(float(np.median(logs))),
        last_value=math.exp(float(np.median(logs))),
    )
    if len(logs) < FEWEST_ENTRIES or not _changes(logs, significance, seed):
        return [whole]
    return _partition(logs)


def _changes(logs: Array, significance: float, seed: int) -> bool:
    """Is the best jump or ramp in this order better than in all but few shuffled orders?"""
    noise = step_noise(logs) or float(logs.std())
    if noise == 0:
        return False
    scores = np.clip((logs - np.median(logs)) / noise, -CLIP, CLIP)
    shapes = _shapes(len(logs))
    seen = float(np.abs(shapes @ scores).max())
    generator = np.random.default_rng(seed)
    shuffled = generator.permuted(np.tile(scores, (SHUFFLES, 1)), axis=1)
    chance = np.abs(shapes @ shuffled.T).max(axis=0)
    # The tolerance: series with few distinct values repeat a score up to rounding.
    at_least = 1 + int(np.count_nonzero(chance >= seen * (1 - 1e-9)))
    return at_least / (1 + SHUFFLES) <= significance


def _shapes(count: int) -> Array:
    """Every jump and every ramp that a series of `count` entries can hold, centred, unit length."""
    index = np.arange(count, dtype=np.float64)
    jumps = [index >= k for k in range(SHORTEST_LEVEL, count - SHORTEST_LEVEL + 1)]
    ramps = [np.maximum(0.0, index - k) for k in range(count - SHORTEST_DRIFT + 1)]
    shapes = np.array([*jumps, *ramps], dtype=np.float64)
    shapes -= shapes.mean(axis=1, keepdims=True)
    return np.asarray(shapes / np.linalg.norm(shapes, axis=1, keepdims=True))


def _partition(logs: Array) -> list[SeriesSegment]:
    """The cheapest division into level and drifting pieces (dynamic programming, O(n^2))."""
    series = _without_outliers(logs)
    count = len(series)
    variance = _variance(series)
    level_price = LEVEL_PRICE * variance * math.log(count)
    drift_price = level_price + DRIFT_PRICE * variance * math.log(count)
    cost = np.full(count + 1, np.inf)
    cost[0] = 0.0
    previous = np.zeros(count + 1, dtype=np.int64)
    slopes = np.zeros(count + 1, dtype=bool)
    sums = _RunningSums(series)
    for end in range(SHORTEST_LEVEL, count + 1):
        starts = np.arange(0, end - SHORTEST_LEVEL + 1)
        level, drift = sums.squared_errors(starts, end)
        drift = np.where(end - starts < SHORTEST_DRIFT, np.inf, drift)
        totals = cost[starts] + np.minimum(level + level_price, drift + drift_price)
        best = int(np.argmin(totals))
        cost[end], previous[end] = totals[best], best
        slopes[end] = drift[best] + drift_price < level[best] + level_price
    ends = [count]
    while ends[-1] > 0:
        ends.append(int(previous[ends[-1]]))
    pieces: list[SeriesSegment] = []
    for start, end in pairwise(reversed(ends)):
        before = pieces[-1].last_value if pieces else None
        piece = series[start:end]
        fit = _drift(piece, before, math.sqrt(variance)) if slopes[end] else _level(piece)
        first, last = math.exp(fit[0]), math.exp(fit[1])
        pieces.append(SeriesSegment(start=start, end=end, first_value=first, last_value=last))
    return pieces


def _variance(series: Array) -> float:
    """Variance of the noise, from successive differences (von Neumann's), jumps clipped.

    Less scattered over short histories than a median would be. The floor: of a noiseless history
    every rounding error would be a change.
    """
    reach = CLIP * math.sqrt(2) * step_noise(series)
    differences = np.clip(np.diff(series), -reach, reach)
    return max(float(np.mean(differences**2)) / 2, 1e-8)


class _RunningSums:
    """Sums that give the residual of a level or linear fit to any piece in constant time."""

    def __init__(self, series: Array) -> None:
        centred = series - series.mean()
        time = np.arange(len(series), dtype=np.float64)
        stacked = np.stack([centred, centred**2, time * centred])
        self._sums = np.concatenate([np.zeros((3, 1)), np.cumsum(stacked, axis=1)], axis=1)

    def squared_errors(self, starts: NDArray[np.int64], end: int) -> tuple[Array, Array]:
        """Residual sums of squares of [start, end) for each start: about a level, about a line."""
        length = (end - starts).astype(np.float64)
        total, squares, moments = self._sums[:, end, None] - self._sums[:, starts]
        level = np.maximum(squares - total**2 / length, 0.0)
        middle = (starts + end - 1) / 2
        covariance = moments - middle * total
        spread = length * (length**2 - 1) / 12
        drift = np.maximum(level - covariance**2 / np.maximum(spread, 1e-12), 0.0)
        return level, drift


def _without_outliers(logs: Array) -> Array:
    """The values after Hampel's filter: 3 deviations from the neighbours' median at most.

    Two neighbours on each side: a change that lasts three entries passes untouched.
    """
    padded = np.pad(logs, 2, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 5)
    centre = np.median(windows, axis=1)
    residual = logs - centre
    spread = NORMAL_FROM_MAD * float(np.median(np.abs(residual)))
    reach = CLIP * max(spread, step_noise(logs))
    return np.asarray(centre + np.clip(residual, -reach, reach))


def _level(piece: Array) -> tuple[float, float]:
    level = float(np.median(piece))
    return level, level


def _drift(piece: Array, before: float | None, noise: float) -> tuple[float, float]:
    """First and last value of the line through a piece, in logarithms.

    A drift sets out from the level before it, unless it plainly begins with a jump: a free line
    over noise would begin a little off that level.
    """
    steps = np.arange(len(piece), dtype=np.float64)
    slope, first = (float(value) for value in np.polyfit(steps, piece, 1))
    if before is not None and abs(first - math.log(before)) <= CLIP * noise:
        onset = math.log(before)
        slope = float((steps + 1) @ (piece - onset) / ((steps + 1) @ (steps + 1)))
        first = onset + slope
    return first, first + slope * (len(piece) - 1)
