"""The range that all but a thousandth of the numbers keep to."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.records.scheme import NumberFormat

INSIDE = 0.999
"""Share of the magnitudes (symmetric) or of the numbers below and above (affine) within range."""


def bounds(grouped: Tensor, form: NumberFormat) -> tuple[Tensor, Tensor]:
    """Quantiles of each group, interpolated; of a few numbers, little below the largest."""
    ordered = (
        grouped.float().abs().sort(-1).values if form.symmetric else grouped.float().sort(-1).values
    )
    high = _quantile(ordered, INSIDE)
    low = -high if form.symmetric else _quantile(ordered, 1 - INSIDE)
    return low.to(grouped.dtype), high.to(grouped.dtype)


def _quantile(ordered: Tensor, share: float) -> Tensor:
    """As torch.quantile, which refuses tensors beyond 16 million numbers."""
    place = share * (ordered.shape[-1] - 1)
    below = int(place)
    above = min(below + 1, ordered.shape[-1] - 1)
    return torch.lerp(ordered[..., below], ordered[..., above], place - below)
