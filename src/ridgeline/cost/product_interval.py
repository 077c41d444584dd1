"""The interval of a product of measured factors whose errors have nothing to do with each other.

    log product = sum of the logs;   its half-width = √(sum of the squared half-widths)

Errors of independent factors add in quadrature, relative ones for products (Taylor, "An
introduction to error analysis", 2nd edition, 1997, section 3.6). Each side of an interval is taken
for itself, as intervals of ratios lean to one side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def product_interval(
    factors: Sequence[float], intervals: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    """Bounds of the product of `factors`, each of which lies within its interval.

    >>> low, high = product_interval([1.4, 1.7], [(1.3, 1.5), (1.6, 1.8)])
    >>> round(low, 3), round(high, 3)
    (2.163, 2.603)
    >>> product_interval([], [])
    (1.0, 1.0)
    """
    below = above = 0.0
    for factor, (low, high) in zip(factors, intervals, strict=True):
        if not 0.0 < low <= factor <= high < math.inf:
            raise ValueError(f"{factor:g} does not lie between {low:g} and {high:g}")
        below += math.log(factor / low) ** 2
        above += math.log(high / factor) ** 2
    product = math.prod(factors)
    return product * math.exp(-math.sqrt(below)), product * math.exp(math.sqrt(above))
