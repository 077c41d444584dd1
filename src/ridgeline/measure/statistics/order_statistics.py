"""A percentile of measured times with an interval that assumes no distribution.

The number of n independent samples below the true p-quantile is binomial (n, p), so the ranks
n p ± z √(n p (1 − p)) bound it with the confidence of z (David, Nagaraja, *Order Statistics*, 3rd
ed., 2003, section 7.1). The 99th percentile is bounded from above from some 370 samples on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from ridgeline.records.calls import Quantile


def quantile(samples: Sequence[float], share: float, confidence: float = 0.95) -> Quantile:
    """The `share`-quantile of samples, and its interval.

    >>> found = quantile([float(n) for n in range(1, 1001)], 0.99)
    >>> round(found.seconds), found.low_seconds, found.high_seconds
    (990, 983.0, 997.0)
    >>> quantile([1.0, 2.0, 3.0], 0.99).high_seconds is None
    True
    """
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    count = len(ordered)
    spread = NormalDist().inv_cdf(0.5 + confidence / 2) * math.sqrt(count * share * (1 - share))
    low, high = math.floor(count * share - spread), math.ceil(count * share + spread)
    return Quantile(
        seconds=float(np.quantile(ordered, share)),
        low_seconds=float(ordered[low - 1]) if low >= 1 else None,
        high_seconds=float(ordered[high - 1]) if high <= count else None,
    )
