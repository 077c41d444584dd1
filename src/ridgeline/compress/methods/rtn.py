"""Every weight to the nearest level of its grid, by itself."""

from __future__ import annotations

from torch import Tensor

from ridgeline.compress import rounding
from ridgeline.compress.methods.rounded import Rounded, judged
from ridgeline.compress.watching.seen import Seen
from ridgeline.records.scheme import Scheme

NEEDS = frozenset[str]()
"""Fields of `Seen`."""


def quantise(
    weight: Tensor, scheme: Scheme, seen: Seen, mask: Tensor | None = None, name: str = "a weight"
) -> Rounded:
    """Round to nearest; `seen` only measures the error.

    A pruned weight is 0, which every grid has, so that a mask changes nothing here.

    Args:
        weight: [out, in], in the dtype of the scales that are saved.
        scheme: With `weights`.
        seen: Of the inputs.
        mask: [out, in] bool, False where a pruned weight stays zero.
        name: Of the layer, for messages.

    Raises:
        InputError: See `rounding.check`.
    """
    del mask
    assert scheme.weights is not None
    return judged(weight, rounding.to_nearest(weight, scheme.weights, name), seen)
