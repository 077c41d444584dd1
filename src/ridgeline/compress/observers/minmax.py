"""The range that no number exceeds."""

from __future__ import annotations

from torch import Tensor

from ridgeline.records.scheme import NumberFormat


def bounds(grouped: Tensor, form: NumberFormat) -> tuple[Tensor, Tensor]:  # noqa: ARG001  # as others
    """The smallest and the largest number of each group."""
    return grouped.amin(-1), grouped.amax(-1)
