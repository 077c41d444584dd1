"""Which figure of the timed repetitions is judged: the median, the mean, a percentile, a tail.

A percentile's interval comes from order statistics: of n independent samples the number below
the true quantile is binomial, so two of the sorted samples enclose it with known probability,
whatever the distribution (Conover, *Practical Nonparametric Statistics*, 3rd ed., 1999, section
3.2). Slow steps come in clusters, so n is first divided by the integrated autocorrelation time of
"at or above the quantile". Intervals of two runs become one of their ratio on the log scale by
MOVER (Zou and Donner, Statistics in Medicine 27, 2008, 1693: recover each side's variance from its
own limits), which `p99/p50` of two runs extends to four terms.

High percentiles need many samples: where even the largest sample may lie below the quantile there
is no upper limit, and nothing is said. `samples_needed` says how many it takes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.errors import InputError
from ridgeline.measure.statistics.intervals import (
    Array,
    RatioInterval,
    Statistic,
    bootstrap_ratio,
    log_times,
)

_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMetric:
    """One figure of many samples."""

    name: str
    """`median`, `mean`, `p99`, `p99/p50`, …"""
    statistic: Statistic | None = None
    """The statistic of the whole sample; None for percentiles."""
    over: float | None = None
    """The quantile of a percentile, e.g. 0.99."""
    under: float | None = None
    """The quantile that it is divided by; None: it is a time."""

    def of(self, samples: Sequence[float]) -> float:
        """The value of the metric in seconds, or the ratio of two percentiles."""
        if self.statistic == "mean":
            return float(np.mean(samples))
        if self.over is None:
            return float(np.median(samples))
        value = float(np.quantile(samples, self.over))
        return value if self.under is None else value / float(np.quantile(samples, self.under))


MEDIAN = SampleMetric(name="median", statistic="median")


def parse_metric(text: str) -> SampleMetric:
    """A metric by its name.

    >>> parse_metric("p99").over, parse_metric("p99.9/p50").under
    (0.99, 0.5)
    """
    if text in ("median", "mean"):
        return SampleMetric(name=text, statistic="median" if text == "median" else "mean")
    over, slash, under = text.partition("/")
    found = [_PERCENTILE.fullmatch(part) for part in ((over, under) if slash else (over,))]
    quantiles = [float(match.group(1)) / 100 for match in found if match]
    if len(quantiles) < len(found) or not all(0 < quantile < 1 for quantile in quantiles):
        raise InputError(
            f"--metric {text}: give median, mean, a percentile (p50, p95, p99, p99.9) "
            "or a ratio of two (p99/p50)"
        )
    return SampleMetric(name=text, over=quantiles[0], under=quantiles[1] if slash else None)


def samples_needed(quantile: float, confidence: float = 0.95) -> int:
    """The fewest independent samples that can bound a quantile from both sides.

    >>> [samples_needed(quantile) for quantile in (0.5, 0.95, 0.99, 0.999)]
    [6, 72, 368, 3688]
    """
    rarest = max(quantile, 1 - quantile)
    return math.ceil(math.log((1 - confidence) / 2) / math.log(rarest))


def metric_slowdown(
    metric: SampleMetric, new: Sequence[float], reference: Sequence[float], confidence: float = 0.95
) -> RatioInterval:
    """New over reference; (0, inf) where the samples cannot bound it."""
    if metric.over is None:
        statistic = metric.statistic or "median"
        return bootstrap_ratio(new, reference, confidence, statistic=statistic)
    signs = [(metric.over, 1.0)] + ([] if metric.under is None else [(metric.under, -1.0)])
    terms = [
        (side * sign, *_log_quantile(log_times(samples), quantile, confidence))
        for samples, side in ((new, 1.0), (reference, -1.0))
        for quantile, sign in signs
    ]
    centre = sum(sign * value for sign, value, _, _ in terms)
    # MOVER: a term that is subtracted lends its other limit.
    below = [value - low if sign > 0 else high - value for sign, value, low, high in terms]
    above = [high - value if sign > 0 else value - low for sign, value, low, high in terms]
    return RatioInterval(
        ratio=math.exp(centre),
        low=math.exp(centre - math.hypot(*below)),
        high=math.exp(centre + math.hypot(*above)),
        rounds=min(len(new), len(reference)),
    )


def quantile_interval(
    samples: Sequence[float], quantile: float, confidence: float = 0.95
) -> tuple[float, float | None, float | None]:
    """A quantile of times and the order statistics that enclose it; None where samples are few.

    >>> quantile_interval([1.0, 2.0, 3.0], 0.99)[1:]
    (None, None)
    """
    value, low, high = _log_quantile(log_times(samples), quantile, confidence)
    bounded = math.isfinite(low) and math.isfinite(high)
    return (
        math.exp(value),
        math.exp(low) if bounded else None,
        math.exp(high) if bounded else None,
    )


def independent_samples(samples: Sequence[float], quantile: float) -> int:
    """How many independent samples these are worth for this quantile."""
    return math.floor(len(samples) / _cluster_length(log_times(samples), quantile))


def _log_quantile(logs: Array, quantile: float, confidence: float) -> tuple[float, float, float]:
    """A quantile of the logarithms, and the limits of its interval (infinite where there is none).

    The sample's share below the quantile lies between the limits' shares with the confidence
    asked for, at least: ranks are whole numbers.
    """
    ordered = np.sort(logs)
    count = len(ordered)
    value = float(np.quantile(ordered, quantile))
    length = _cluster_length(logs, quantile)
    worth = math.floor(count / length)
    ranks = _ranks(worth, quantile, (1 - confidence) / 2)
    if ranks is None:
        return value, -math.inf, math.inf
    low = max(1, math.floor(ranks[0] * count / worth))
    high = min(count, math.ceil(ranks[1] * count / worth))
    return value, min(value, float(ordered[low - 1])), max(value, float(ordered[high - 1]))


def _ranks(count: int, quantile: float, tail: float) -> tuple[int, int] | None:
    """The order statistics, from 1, that enclose a quantile but for `tail` on either side.

    P(X_(l) > q) = P(at most l - 1 samples lie at or below q), and P(X_(u) < q) = P(at least u do).
    """
    if count < 1:
        return None
    k = np.arange(count + 1)
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, count + 1)))))
    chosen = logs[count] - logs[k] - logs[count - k]
    mass = np.exp(chosen + k * math.log(quantile) + (count - k) * math.log1p(-quantile))
    at_most = np.cumsum(mass)
    low = int(np.searchsorted(at_most, tail, side="right"))
    at_least = np.cumsum(mass[::-1])[::-1]
    enough = np.flatnonzero(at_least <= tail)
    if low < 1 or len(enough) == 0:
        return None
    return low, int(enough[0])


def _cluster_length(logs: Array, quantile: float) -> float:
    """The number of samples that are worth one: slow ones come together.

    The integrated autocorrelation time of "at or above the quantile", up to the first lag that is
    lost in noise.
    """
    count = len(logs)
    above = (logs >= np.quantile(logs, quantile)).astype(np.float64)
    above -= above.mean()
    power = float(above @ above)
    length = 1.0
    if power > 0:
        for lag in range(1, count // 4):
            correlation = float(above[:-lag] @ above[lag:]) / power
            if correlation < 2 / math.sqrt(count):
                break
            length += 2 * correlation
    return length
