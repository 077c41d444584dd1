"""Training without a barrier: gradients per second with stragglers, against what staleness costs.

    synchronous    max tᵢ + exchange per update of n gradients
    asynchronous   Σ 1/(tᵢ + exchange) gradients per second, each stale by the updates between its
                   pull and its push: on average n − 1, of a worker i  Σⱼ≠ᵢ tᵢ/tⱼ
    waiting        nobody is more than s steps ahead of the slowest, so in the long run all have its
                   rate (stale synchronous parallel: Ho et al., NIPS 2013)

What staleness costs: gradient descent on a curvature λ with a delay of τ updates is stable up to

    η λ < 2 sin(π / (2 (2 τ + 1)))

the root of z^(τ+1) − z^τ + ηλ = 0 on the unit circle (τ = 0: 2, the usual bound). Where noise and
not curvature bounds the rate, so that the best rate lies far below that, stale gradients are worth
as much as fresh ones; where curvature does, an update is worth as much less as the bound is lower.
Scaling the rate by 1/(1 + τ) (Zhang et al., 1511.05950) keeps below it at any delay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AsynchronousForecast:
    """The same workers with and without a barrier."""

    synchronous_gradients_per_second: float
    asynchronous_gradients_per_second: float
    waiting_gradients_per_second: float
    """With a bound that makes the fast ones wait, in the long run."""
    throughput_ratio: float
    """Asynchronous over synchronous, in gradients."""
    mean_staleness: float
    """Updates between a pull and its push, over all gradients."""
    worst_staleness: float
    """The staleness of the slowest worker."""
    rate_ratio: float
    """The largest stable learning rate at the mean staleness, over that without."""
    progress_ratio_noise_bound: float
    """Progress per second over the synchronous run's where noise bounds the rate: throughput."""
    progress_ratio_curvature_bound: float
    """The same where curvature does: updates per second times what each may move."""


def stable_rate(staleness: float) -> float:
    """The largest stable learning rate over that of fresh gradients, by curvature alone.

    >>> stable_rate(0), round(stable_rate(1), 3), round(stable_rate(7), 3)
    (1.0, 0.5, 0.105)
    """
    if staleness < 0:
        raise ValueError(f"staleness is {staleness:g}: gradients come after they were asked for")
    return math.sin(math.pi / (2.0 * (2.0 * staleness + 1.0)))


def asynchronous_forecast(
    step_seconds: Sequence[float], exchange_seconds: float = 0.0
) -> AsynchronousForecast:
    """Workers without a barrier beside the same with one: throughput, staleness, progress.

    >>> found = asynchronous_forecast([0.1, 0.1, 0.1, 0.4])
    >>> round(found.throughput_ratio, 2), found.mean_staleness, found.worst_staleness
    (3.25, 3.0, 12.0)
    """
    if not step_seconds or min(step_seconds) <= 0.0 or exchange_seconds < 0.0:
        raise ValueError("every worker takes time for a step, and an exchange none below 0")
    each = [one + exchange_seconds for one in step_seconds]
    count, slowest = len(each), max(each)
    free = sum(1.0 / one for one in each)
    barrier = count / slowest
    staleness = count - 1.0
    rate = stable_rate(staleness)
    return AsynchronousForecast(
        synchronous_gradients_per_second=barrier,
        asynchronous_gradients_per_second=free,
        waiting_gradients_per_second=barrier,
        throughput_ratio=free / barrier,
        mean_staleness=staleness,
        worst_staleness=slowest * free - 1.0,
        rate_ratio=rate,
        progress_ratio_noise_bound=free / barrier,
        progress_ratio_curvature_bound=free * slowest * rate,
    )
