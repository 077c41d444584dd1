"""How a model's answers differ from those of the model as given: agreement, SQNR, a paired test.

Intervals of shares are Wilson's (`measure/statistics/shares.py`); the paired test is McNemar's in
its exact form, a sign test of the images that only one of both has right (McNemar, Psychometrika
12, 1947).
"""

from __future__ import annotations

import math

from torch import Tensor

from ridgeline.measure.statistics.shares import wilson_interval
from ridgeline.records.image_compression import ChangedAnswers, ImageAnswers, Share


def answers(given: Tensor, logits: Tensor, labels: Tensor | None) -> ImageAnswers:
    """The answers of a model beside those of the one as given.

    Args:
        given: Logits [images, classes] of the model as given.
        logits: Of the other, on the same images.
        labels: [images] int64, or None.
    """
    first, second = given.argmax(1), logits.argmax(1)
    return ImageAnswers(
        agreement=share(int((first == second).sum()), len(first)),
        sqnr_db=sqnr_db(given, logits),
        changed=None if labels is None else changed(first == labels, second == labels),
    )


def share(count: int, of: int) -> Share:
    """A share and Wilson's interval at 95 %.

    >>> one = share(93, 100)
    >>> f"{one.share:.2f}: {one.ci_low:.3f} to {one.ci_high:.3f}"
    '0.93: 0.863 to 0.966'
    """
    low, high = wilson_interval(count, of)
    return Share(count=count, of=of, ci_low=low, ci_high=high)


def sqnr_db(given: Tensor, other: Tensor) -> float | None:
    """Signal to quantisation noise, 10 log₁₀ (Σ x² / Σ (x − y)²); None where both are equal.

    >>> import torch
    >>> round(sqnr_db(torch.ones(4), torch.full((4,), 0.9)), 3)
    20.0
    """
    signal = float(given.double().square().sum())
    noise = float((given.double() - other.double()).square().sum())
    return None if noise == 0 or signal == 0 else 10 * math.log10(signal / noise)


def changed(before: Tensor, after: Tensor) -> ChangedAnswers:
    """McNemar's exact test of which images were right before and after, [images] bool each."""
    lost, won = int((before & ~after).sum()), int((~before & after).sum())
    return ChangedAnswers(lost=lost, won=won, p_value=mcnemar(lost, won))


def mcnemar(lost: int, won: int) -> float:
    """The two-sided probability of a split at least this uneven, if both sides were as likely.

    >>> mcnemar(0, 5), mcnemar(3, 3), round(mcnemar(10, 2), 4)
    (0.0625, 1.0, 0.0386)
    """
    n, least = lost + won, min(lost, won)
    tail = sum(math.comb(n, k) for k in range(least + 1))
    return min(1.0, 2 * tail / 2**n)
