"""Every weight rounded to the nearest level of its grid; and what all methods hand back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ridgeline.checkpoints.quantised import Quantised
from ridgeline.compress import rounding
from ridgeline.compress.watching.statistics import CalibrationStatistics, output_error
from ridgeline.records.scheme import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    """A weight matrix after it was quantised."""

    quantised: Quantised
    error: float
    """‖(W − Ŵ) X‖² / ‖W X‖² over the calibration inputs; ‖W − Ŵ‖² / ‖W‖² where none were seen."""
    notices: tuple[str, ...] = ()
    """What the user should know: damping was raised, calibration did not reach the layer."""


def judged(
    weight: Tensor, found: Quantised, seen: CalibrationStatistics, notices: tuple[str, ...] = ()
) -> Rounded:
    """With its error over what was seen: all of it, or the sample of rows."""
    error = output_error(weight, found.dequantised(), seen.hessian, seen.rows)
    return Rounded(quantised=found, error=error, notices=notices)


def gram_of(rows: Tensor) -> Tensor:
    """XᵀX of inputs [tokens, in]: with it ‖D X‖² is the sum of (D XᵀX) ⊙ D."""
    return rows.float().T @ rows.float()


NEEDS = frozenset[str]()
"""The fields of `CalibrationStatistics` that are looked at."""


def quantise(
    weight: Tensor,
    scheme: Scheme,
    seen: CalibrationStatistics,
    mask: Tensor | None = None,
    name: str = "a weight",
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
