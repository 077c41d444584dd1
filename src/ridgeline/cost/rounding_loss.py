"""What fewer bits of weights come to: size exactly, loss as the square of the step between levels.

Rounding to levels a step Δ apart adds noise of variance Δ²/12, and to second order a model's KL
divergence and its rise in loss go with that variance. A range cut into 2^b − 1 steps has Δ
proportional to 1 / (2^b − 1), so that one bit fewer costs four to five times the loss.
"""

from __future__ import annotations


def noise_ratio(known_bits: int, asked_bits: int) -> float:
    """How many times the loss at `known_bits` the loss at `asked_bits` is.

    >>> round(noise_ratio(4, 3), 2), round(noise_ratio(4, 8), 5), noise_ratio(4, 4)
    (4.59, 0.00346, 1.0)
    """
    steps = (2.0**known_bits - 1.0) / (2.0**asked_bits - 1.0)
    return steps**2


def resized_bytes(known_bytes: float, known_bits: int, asked_bits: int, weights: float) -> float:
    """The size with other bits for each of so many weights; scales stay what they were.

    >>> resized_bytes(1000.0, 4, 3, 800.0)
    900.0
    """
    return known_bytes + (asked_bits - known_bits) / 8.0 * weights
