"""When may a comparison in rounds stop? At looks that share one error between them.

Two programs run in turn; a round is a pair of times. A gain of two is plain after three rounds,
a gain of two percent after thirty, and nobody knows beforehand which it is. Whoever looks at an
interval after every round and stops at the first that pleases is wrong far more often than the
interval says. So the looks stand fixed, and each may be wrong with its own small probability;
these add up to `TOTAL_ERROR` (alpha spending: Lan and DeMets, "Discrete sequential boundaries
for clinical trials", Biometrika 70, 1983; here spent by Bonferroni's inequality, which needs no
correlation between looks). The interval of the look at which a comparison ended holds with
1 - `TOTAL_ERROR`, whichever look that was.

A look at few rounds is Student's interval over the log ratios: no other bounds three numbers.
With heavier tails than the normal it errs on the wide side (Benjamini, "Is the t test really
conservative when the parent distribution is long-tailed?", JASA 78, 1983); three rounds that
agree by luck are kept from proving anything by `LEAST_SPREAD`. From `RANKS_FROM` rounds on it is
the signed-rank interval, which assumes no distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ridgeline.measure.statistics.intervals import RatioInterval, log_times, ratio_interval

LOOKS: dict[int, float] = {
    3: 0.004,
    5: 0.006,
    8: 0.010,
    12: 0.010,
    18: 0.010,
    27: 0.005,
    40: 0.005,
}
"""Rounds after which there is a look → its probability of being wrong."""
TOTAL_ERROR = sum(LOOKS.values())
MOST_ROUNDS = max(LOOKS)
RANKS_FROM = 8
LEAST_SPREAD = 0.005
"""Standard deviation of a round's log ratio (0.5 %) below which no machine is believed to be."""
_LARGEST_EXPONENT = 700.0
NOTHING_KNOWN = RatioInterval(ratio=1.0, low=0.0, high=math.inf, rounds=0)


def interval_of(a_rounds: Sequence[float], b_rounds: Sequence[float]) -> RatioInterval:
    """The interval of the latest look, over its rounds alone: later ones were not looked at.

    Before the first look nothing is bounded: (0, inf).

    >>> found = interval_of([2.0, 2.02, 1.99], [1.0, 1.0, 1.0])
    >>> round(found.ratio, 2), found.low > 1.5
    (2.0, True)
    """
    look = last_look(len(a_rounds))
    if look >= RANKS_FROM:
        return ratio_interval(a_rounds[:look], b_rounds[:look], 1 - LOOKS[look])
    if len(a_rounds) == 0:
        return NOTHING_KNOWN
    used = look or len(a_rounds)
    differences = log_times(a_rounds[:used]) - log_times(b_rounds[:used])
    centre, half = float(np.mean(differences)), math.inf
    if look:
        spread = max(float(np.std(differences, ddof=1)), LEAST_SPREAD)
        half = _student(look - 1, LOOKS[look]) * spread / math.sqrt(look)
    return RatioInterval(
        ratio=math.exp(centre),
        low=math.exp(centre - half),
        high=math.exp(centre + half) if half < _LARGEST_EXPONENT else math.inf,
        rounds=used,
    )


def last_look(rounds: int) -> int:
    """Rounds at the latest look that so many allow; 0 before the first."""
    return max((at for at in LOOKS if at <= rounds), default=0)


def next_look(rounds: int) -> int | None:
    """Rounds at the first look that so many have not reached; None: they have reached all."""
    return min((at for at in LOOKS if at > rounds), default=None)


def side_by_side(
    a_rounds: Sequence[float], b_rounds: Sequence[float], ratio: float
) -> tuple[float, float]:
    """Seconds per step of A and of B whose quotient is `ratio`: the same rounds, one statistic.

    Medians of the two sides have a quotient of their own, and a reader who divides them finds
    another ratio than the one beside them. The level is the middle of the rounds' geometric
    means; each side lies half the ratio off it.

    >>> side_by_side([2.0, 2.0, 8.0], [1.0, 1.0, 4.0], 2.0)
    (2.0, 1.0)
    """
    if len(a_rounds) == 0:
        return 0.0, 0.0
    used = last_look(len(a_rounds)) or len(a_rounds)
    middles = (log_times(a_rounds[:used]) + log_times(b_rounds[:used])) / 2
    level = float(np.median(middles))
    half = math.log(ratio) / 2
    return round(math.exp(level + half), 12), round(math.exp(level - half), 12)


def _student(freedom: int, error: float) -> float:
    """Two-sided critical value of Student's t for 2 or 4 degrees of freedom, in closed form.

    Shaw, "Sampling Student's T distribution: use of the inverse cumulative distribution
    function", Journal of Computational Finance 9, 2006, section 3.

    >>> round(_student(2, 0.05), 3), round(_student(4, 0.05), 3)
    (4.303, 2.776)
    """
    above = 1 - error / 2
    spread = 4 * above * (1 - above)
    if freedom == 2:
        return 2 * (above - 0.5) * math.sqrt(2 / spread)
    if freedom == 4:
        return 2 * math.sqrt(math.cos(math.acos(math.sqrt(spread)) / 3) / math.sqrt(spread) - 1)
    raise ValueError(f"no closed form is written down here for {freedom} degrees of freedom")


__all__ = [
    "LOOKS",
    "MOST_ROUNDS",
    "NOTHING_KNOWN",
    "TOTAL_ERROR",
    "interval_of",
    "next_look",
    "side_by_side",
]
