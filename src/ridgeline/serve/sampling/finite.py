"""Logits that nothing can be picked from end their request, not the others.

A row's largest value tells: it is NaN where any is, infinite where one is, and minus infinity where
no token may come.
"""

from __future__ import annotations

from torch import Tensor

from ridgeline.errors import RidgelineError


class NotFinite(RidgelineError):
    """Some row has NaN or infinities instead of numbers; whose it is shows when each is alone."""


def check_finite(best: Tensor) -> None:
    """Raise `NotFinite` unless every row's largest logit, or any of its weights, is a number."""
    if not bool(best.isfinite().all()):
        raise NotFinite("the model gave no finite numbers (NaN, infinity, or no token is left)")
