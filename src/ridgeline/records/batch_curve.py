"""Latency and throughput over the batch: the JSON of `ridgeline predict inference --batches`."""

from __future__ import annotations

from ridgeline.records.finite import Computed
from ridgeline.records.vision_estimate import VisionInferenceEstimate


class BatchPoint(Computed, frozen=True, kw_only=True):
    """One batch under one software."""

    estimate: VisionInferenceEstimate
    in_time: bool | None
    """Whether it is answered within the time asked for; None: none was asked for."""


class BatchCurve(Computed, frozen=True, kw_only=True):
    """One software over all batches."""

    software: str
    points: list[BatchPoint]
    knee_batch: int
    """The smallest batch with nine tenths of the largest throughput: more only waits."""
    largest_in_time: int | None
    """The largest batch that is answered in time; None: none is, or no time was asked for."""


class BatchCurves(Computed, frozen=True, kw_only=True, tag_field="record", tag="batch-curves"):
    """Several software on one device, each over the same batches."""

    model: str
    device: str
    precision: str
    within_seconds: float | None
    """The time in which a batch shall be answered."""
    curves: list[BatchCurve]
