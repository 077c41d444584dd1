"""Batch normalisation of inference moved into the convolution or linear layer before it.

    γ (w·x + b − μ) / √(σ² + ε) + β  =  (w γ / √(σ² + ε))·x + (b − μ) γ / √(σ² + ε) + β

Computed in float64, so that only the rounding of the result to the weights' own dtype is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatistics:
    """Batch normalisation as inference computes it; all tensors [channels]."""

    mean: Tensor
    variance: Tensor
    epsilon: float
    gain: Tensor | None = None
    offset: Tensor | None = None

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """y = x · scale + shift of each channel, float64."""
        scale = (self.variance.double() + self.epsilon).rsqrt()
        if self.gain is not None:
            scale = scale * self.gain.double()
        shift = -self.mean.double() * scale
        if self.offset is not None:
            shift = shift + self.offset.double()
        return scale, shift


def fold(
    weight: Tensor, bias: Tensor | None, by: BatchStatistics, *, transposed: bool, groups: int
) -> tuple[Tensor, Tensor]:
    """The weight and bias of a layer that computes both.

    Args:
        weight: [out, in / groups, …]; of a transposed convolution [in, out / groups, …].
        bias: [out], None where there is none.
        by: What follows the layer.
        transposed: Whether the weight's inputs come first.
        groups: Of the convolution.
    """
    scale, shift = by.scale_and_shift()
    if bias is not None:
        shift = shift + bias.double() * scale
    wide = weight.double()
    if transposed:
        inputs, outputs = weight.shape[:2]
        grouped = wide.reshape(groups, inputs // groups, outputs, -1)
        folded = (grouped * scale.reshape(groups, 1, outputs, 1)).reshape(weight.shape)
    else:
        folded = wide * scale.reshape(-1, *[1] * (weight.ndim - 1))
    return folded.to(weight.dtype), shift.to(weight.dtype)
