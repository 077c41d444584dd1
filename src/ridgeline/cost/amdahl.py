"""The speed-up of a whole from that of a part.

    speed-up = 1 / (1 - share + share / factor)

G. M. Amdahl, "Validity of the single processor approach to achieving large scale computing
capabilities", AFIPS 1967.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


def speedup(share: float, factor: float) -> float:
    """Speed-up of the whole when `share` of its time runs `factor` times faster.

    >>> speedup(0.5, 2.0)
    1.3333333333333333
    >>> speedup(0.5, math.inf)
    2.0
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a share lies between 0 and 1, not at {share}")
    if factor <= 0.0:
        raise ValueError(f"a speed-up is above 0, not {factor}")
    left = 1.0 - share + share / factor
    return 1.0 / left if left > 0.0 else math.inf


def speedup_without(seconds: float, of_seconds: float) -> float:
    """Speed-up of something that takes `of_seconds` when `seconds` of it are saved.

    >>> speedup_without(1.0, 4.0)
    1.3333333333333333
    """
    if of_seconds <= 0.0:
        raise ValueError(f"the whole must take time, not {of_seconds} s")
    return speedup(min(max(seconds / of_seconds, 0.0), 1.0), math.inf)


def stacked(factors: Iterable[float]) -> float:
    """Speed-up of cures laid on top of each other, each measured on the whole that it found.

    >>> round(stacked([1.4, 1.7, 1.15, 1.12]), 4)
    3.0654
    """
    return math.prod(factors)
