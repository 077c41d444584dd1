"""A share of things that were counted, and its interval.

Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the
American Statistical Association 22, 1927, 209: honest at shares of none and of all, where the
normal approximation has no width at all.
"""

from __future__ import annotations

import math

Z = 1.959963984540054
"""Standard normal quantile of a two-sided interval at 95 %."""


def wilson_interval(count: int, of: int) -> tuple[float, float]:
    """Bounds of the share behind `count` of `of`, at 95 %.

    >>> f"{wilson_interval(0, 500)[1]:.4f}", wilson_interval(500, 500)[1]
    ('0.0076', 1.0)
    """
    p, z2 = count / of, Z * Z
    centre = (p + z2 / (2 * of)) / (1 + z2 / of)
    half = Z / (1 + z2 / of) * math.sqrt(p * (1 - p) / of + z2 / (4 * of * of))
    # the formula's own values at the ends, without its rounding
    return max(0.0, centre - half) if count else 0.0, min(1.0, centre + half) if count < of else 1.0


def fewest_for_share(share: float) -> int:
    """Trials without a single hit that bound a share from above, at 95 %.

    >>> fewest_for_share(0.001)
    3838
    """
    return math.ceil(Z * Z * (1 - share) / share)
