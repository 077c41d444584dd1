"""How the learning rate follows the batch: linear and square-root rules, and where both end.

    linear      ε · k for a batch k times as large, after a warm-up       Goyal et al., 1706.02677
    square root ε · √k: keeps the variance of the update                  Krizhevsky, 1404.5997;
                                                                          for Adam as a rule
    noise scale ε(B) = ε_max / (1 + B_noise/B)                            McCandlish et al.,
    trade-off   (S/S_min - 1) (E/E_min - 1) = 1, B_crit = E_min/S_min     1812.06162, eq. 2.6, 2.11

The linear rule is the noise scale's limit of small batches: past the critical batch more data per
step hardly shortens the run. S counts optimizer steps, E examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def linear_scaling(rate: float, batch: float, new_batch: float) -> float:
    """The rate for `new_batch` by the linear rule.

    >>> linear_scaling(0.1, 256, 8192)
    3.2
    """
    _positive(rate, batch, new_batch)
    return rate * new_batch / batch


def sqrt_scaling(rate: float, batch: float, new_batch: float) -> float:
    """The rate for `new_batch` by the square-root rule.

    >>> sqrt_scaling(3e-4, 256, 1024)
    0.0006
    """
    _positive(rate, batch, new_batch)
    return rate * math.sqrt(new_batch / batch)


def warmup(step: int, num_warmup_steps: int, start_rate: float, rate: float) -> float:
    """The rate at `step` (from 0) of a gradual warm-up: linear from `start_rate` to `rate`.

    Goyal et al. start at the small batch's rate and take five epochs (section 2.2).

    >>> [round(warmup(step, 4, 0.1, 0.5), 2) for step in (0, 2, 4, 9)]
    [0.1, 0.3, 0.5, 0.5]
    """
    if step >= num_warmup_steps:
        return rate
    return start_rate + (rate - start_rate) * step / num_warmup_steps


def noise_scale_rate(
    rate: float, batch: float, new_batch: float, noise_scale: float, exponent: float = 1.0
) -> float:
    """The rate for `new_batch` when the gradient noise scale is known.

    `exponent` is 1 for SGD; between 0.5 and 1 for Adam (McCandlish et al., appendix E.2).

    >>> round(noise_scale_rate(0.1, 256, 8192, 1e9), 3), round(
    ...     noise_scale_rate(0.1, 256, 8192, 256.0), 3
    ... )
    (3.2, 0.194)
    """
    _positive(rate, batch, new_batch, noise_scale)
    gain = (1.0 + noise_scale / batch) / (1.0 + noise_scale / new_batch)
    return float(rate * gain**exponent)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNoise:
    """An unbiased pair of estimates; their ratio is biased, so average each over many steps."""

    signal: float
    """|G|², the squared length of the true gradient."""
    noise: float
    """tr(Σ), the summed variance of one example's gradient."""

    @property
    def noise_scale(self) -> float:
        """The batch at which signal and noise are even, in examples: B_simple = tr(Σ)/|G|²."""
        return self.noise / self.signal


def gradient_noise(
    small_batch: float, small_norm_squared: float, big_batch: float, big_norm_squared: float
) -> GradientNoise:
    """From squared gradient norms at two batch sizes (McCandlish et al., appendix A.1).

    Data parallelism has both for free: one rank's gradient and the averaged one.

    >>> gradient_noise(32, 1.0 + 6400 / 32, 1024, 1.0 + 6400 / 1024).noise_scale
    6400.0
    """
    if not 0.0 < small_batch < big_batch:
        raise ValueError(f"batch {small_batch} must be above 0 and below {big_batch}")
    signal = (big_batch * big_norm_squared - small_batch * small_norm_squared) / (
        big_batch - small_batch
    )
    noise = (small_norm_squared - big_norm_squared) / (1.0 / small_batch - 1.0 / big_batch)
    return GradientNoise(signal=signal, noise=noise)


def steps_at(batch: float, critical_batch: float) -> float:
    """Steps to a given loss, over the fewest possible (of an endless batch).

    >>> steps_at(1024, 1024), steps_at(8192, 1024)
    (2.0, 1.125)
    """
    _positive(batch, critical_batch)
    return 1.0 + critical_batch / batch


def examples_at(batch: float, critical_batch: float) -> float:
    """Examples to the same loss, over the fewest possible (of a tiny batch).

    >>> examples_at(1024, 1024), examples_at(8192, 1024)
    (2.0, 9.0)
    """
    _positive(batch, critical_batch)
    return 1.0 + batch / critical_batch


def _positive(*values: float) -> None:
    if min(values) <= 0.0:
        raise ValueError("rates, batches and noise scales must be above 0")
