"""Neurons of gated and plain MLPs, taken out."""

from __future__ import annotations

from torch import Tensor

from ridgeline.compress.pruning.structured.places import Cut, MlpPlace
from ridgeline.errors import InputError
from ridgeline.kernels.masks import keep_largest

MULTIPLE = 8
"""Kernels run on whole tiles."""


def kept_width(width: int, share: float, multiple: int = MULTIPLE) -> int:
    """Neurons of each layer that stay.

    Args:
        width: As it is.
        share: That goes, about.
        multiple: That the width stays one of, if it is.

    Raises:
        InputError: None would stay.

    >>> kept_width(352, 0.25), kept_width(352, 0.25, multiple=32)
    (264, 256)
    """
    step = next((size for size in (multiple, MULTIPLE) if width % size == 0), 1)
    kept = round(width * (1.0 - share) / step) * step
    if not 0 < kept <= width:
        raise InputError(f"a share of {share:g} leaves {kept} of {width} neurons; prune fewer")
    return kept


def kept_neurons(worth: Tensor, kept: int) -> Tensor:
    """Indices of those worth most, in order.

    Args:
        worth: [width] (`columns.worth` of the MLP's output matrix).
        kept: How many.
    """
    return keep_largest(worth, len(worth) - kept).nonzero()[:, 0]


def cuts(place: MlpPlace, kept: Tensor) -> list[Cut]:
    """What takes all other neurons out of a block."""
    inner = [Cut(linear=name, side="outputs", kept=kept) for name in place.inner]
    return [*inner, Cut(linear=place.outer, side="inputs", kept=kept)]
