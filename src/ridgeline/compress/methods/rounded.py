"""What a rounding method hands back, and how wrong it is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ridgeline.checkpoints.quantised import Quantised
from ridgeline.compress.pruning.weights import output_error
from ridgeline.compress.watching.seen import Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    """One weight matrix after rounding."""

    quantised: Quantised
    error: float
    """‖(W − Ŵ) X‖² / ‖W X‖² over the calibration inputs; ‖W − Ŵ‖² / ‖W‖² where none were seen."""
    notices: tuple[str, ...] = ()
    """What the user should know: damping was raised, calibration did not reach the layer."""


def judged(weight: Tensor, found: Quantised, seen: Seen, notices: tuple[str, ...] = ()) -> Rounded:
    """With its error over what was seen: all of it, or the sample of rows."""
    gram = seen.hessian
    if gram is None and seen.rows is not None:
        gram = gram_of(seen.rows)
    error = output_error(weight, found.dequantised(), gram)
    return Rounded(quantised=found, error=error, notices=notices)


def gram_of(rows: Tensor) -> Tensor:
    """XᵀX of inputs [tokens, in]: with it ‖D X‖² is the sum of (D XᵀX) ⊙ D."""
    return rows.float().T @ rows.float()
