"""When requests are sent, as seconds from the start. Open loop: nobody waits for an answer.

Each function is an endless or bounded stream of rising times; the caller cuts it by time or count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random


def constant(requests_per_second: float) -> Iterator[float]:
    """Evenly spaced.

    >>> times = constant(4.0)
    >>> next(times), next(times), next(times)
    (0.0, 0.25, 0.5)
    """
    count = 0
    while True:
        yield count / requests_per_second
        count += 1


def poisson(requests_per_second: float, rng: Random) -> Iterator[float]:
    """Independent users: exponential gaps."""
    return gamma(requests_per_second, 1.0, rng)


def gamma(requests_per_second: float, variation: float, rng: Random) -> Iterator[float]:
    """Gaps of a gamma distribution.

    Args:
        requests_per_second: in the mean.
        variation: standard deviation of a gap over its mean: 1 is Poisson, above it bursts. The
            shape ("burstiness" elsewhere) is 1 / variation².
        rng: where the gaps come from.
    """
    shape = 1 / variation**2
    scale = 1 / (requests_per_second * shape)
    now = 0.0
    while True:
        now += rng.gammavariate(shape, scale)
        yield now


def ramp(first_rate: float, last_rate: float, seconds: float, rng: Random) -> Iterator[float]:
    """Poisson whose rate goes in a straight line from `first_rate` to `last_rate`.

    Arrivals of rate 1 are bent through the inverse of Λ(t) = first · t + slope · t² / 2 (Lewis and
    Shedler 1979, section 1). Ends after `seconds`.
    """
    slope = (last_rate - first_rate) / seconds
    whole = (first_rate + last_rate) / 2 * seconds
    passed = 0.0
    while True:
        passed += rng.expovariate(1.0)
        if passed >= whole:
            return
        if slope == 0:
            yield passed / first_rate
        else:
            root = math.sqrt(max(0.0, first_rate**2 + 2 * slope * passed))
            yield (root - first_rate) / slope
