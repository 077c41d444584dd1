"""What theory says a training run will take: never the same type as a measurement.

The field names are the JSON contract of `ridgeline predict training` and `plan training`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ridgeline.records.finite import Computed
from ridgeline.records.layout import Layout

Fit = Literal["fits", "tight", "oom"]


class StageMemory(Computed, frozen=True, kw_only=True):
    """Peak device memory of one pipeline stage, by term."""

    stage: int
    terms: dict[str, float]
    """Bytes of each term: weights, gradients, master, optimizer, activations, logits, buffers, …"""
    total_bytes: float


class MemoryEstimate(Computed, frozen=True, kw_only=True):
    """Peak memory over the stages, against what one device has."""

    stages: list[StageMemory]
    peak_bytes: float
    capacity_bytes: float
    verdict: Fit


class CoefficientChange(Computed, frozen=True, kw_only=True):
    """One coefficient that measured steps moved."""

    name: str
    before: float
    after: float


class Estimate(Computed, frozen=True, kw_only=True, tag_field="record", tag="training-estimate"):
    """One predicted training step."""

    layout: Layout
    step_seconds: float
    interval: tuple[float, float]
    """Step seconds between which 80 of 100 such runs are expected to lie."""
    tokens_per_second_per_gpu: float
    """Tokens per second of one device; of a model of images, patches with the class token."""
    images_per_second_per_gpu: float | None = None
    """Images per second of one device; None where the model takes no images."""
    mfu: float
    """Model FLOPs (no recomputation; convention in `flops_convention`) over dense peak."""
    hfu: float
    """Executed FLOPs, recomputation included, over dense peak."""
    flops_convention: str
    trained_parameters: float
    """Parameters that have gradients: all of the model, or those of its adapters."""
    memory: MemoryEstimate
    breakdown: dict[str, float]
    """Term → exposed seconds of the step; the terms add up to `step_seconds`."""
    bottleneck: str
    sent_bytes: dict[str, float] = msgspec.field(default_factory=dict)
    """Term → bytes that one device sends in a step, hidden or not."""
    assumed: list[str]
    """Coefficients and inputs that were assumed rather than measured or given."""
    calibrated: list[CoefficientChange] = msgspec.field(default_factory=list)
    """What the user's own measured steps changed."""
