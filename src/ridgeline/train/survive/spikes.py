"""Is this loss a spike: far above the losses of late, measured in their own standard deviations.

PaLM rolled back some 100 steps before each of about 20 spikes and skipped 200 to 500 batches
(Chowdhery et al., arXiv 2204.02311, section 5.1); a number of standard deviations is the rule that
needs no scale of the loss.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean, pstdev

_WINDOW = 100
_FEWEST = 20
"""Losses that a standard deviation is taken from."""


class Spikes:
    """Judges losses in their order; what it calls bad is not remembered."""

    def __init__(self, deviations: float) -> None:
        """With the number of standard deviations that is too many; 0: only what is no number."""
        self._deviations = deviations
        self._window: deque[float] = deque(maxlen=_WINDOW)

    def judge(self, loss: float, gradient_norm: float | None) -> str:
        """Why a step is bad, in words; empty: it is not."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if gradient_norm is not None and not math.isfinite(gradient_norm):
            return f"the norm of the gradients is {gradient_norm}"
        if self._deviations > 0.0 and len(self._window) >= _FEWEST:
            mean = fmean(self._window)
            limit = mean + self._deviations * pstdev(self._window)
            if loss > limit:
                return f"the loss {loss:.4g} is above {limit:.4g} (mean of late {mean:.4g})"
        self._window.append(loss)
        return ""
