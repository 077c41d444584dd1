"""Memory of one device over a predicted training step.

The field names are the JSON contract of `ridgeline predict memory`.
"""

from __future__ import annotations

from typing import Literal

from ridgeline.records.estimate import Fit
from ridgeline.records.finite import Computed
from ridgeline.records.layout import Layout


class MemoryMoment(Computed, frozen=True, kw_only=True):
    """What is alive at a time of the step."""

    phase: Literal["forward", "backward", "optimizer"]
    seconds: float
    """Since the forward pass of the step's last micro-batch began."""
    terms: dict[str, float]
    """The bytes of each category."""
    total_bytes: float


class CheckpointPeak(Computed, frozen=True, kw_only=True):
    """What another way to keep activations would come to."""

    checkpoint: str
    peak_bytes: float
    verdict: Fit
    seconds: float
    """Time of the micro-batch and the optimizer: recomputation takes time."""
    activation_bytes: float
    """The most that activations take at a moment; those that are computed again count as far as
    they exceed the logits, which are gone by then."""
    activations_freed: float
    """Activations of `none` over these: how many times fewer are kept."""
    pass_ratio: float
    """The time of forward and backward pass over that of `none`."""


class MemoryCurve(Computed, frozen=True, kw_only=True, tag_field="record", tag="memory-curve"):
    """Memory over the last micro-batch of a step and its optimizer."""

    model: str
    cluster: str
    layout: Layout
    checkpoint: Literal["none", "selective", "full", "sqrt"]
    moments: list[MemoryMoment]
    peak: MemoryMoment
    """The moment at which most is alive."""
    largest_term: str
    """What takes most at the peak."""
    capacity_bytes: float
    verdict: Fit
    others: list[CheckpointPeak]
    """Every way to keep activations, the chosen one among them."""
    assumed: list[str]
