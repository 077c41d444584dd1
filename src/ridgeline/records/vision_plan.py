"""What a search for the best way to train or run a network for images found.

The JSON contract of `ridgeline plan training` for such networks and of `plan inference`.
"""

from __future__ import annotations

from ridgeline.records.plan import KnobValue, Objective, PlanPart
from ridgeline.records.vision_estimate import VisionBound, VisionTrainingEstimate


class VisionCandidate(PlanPart, frozen=True, kw_only=True):
    """One way to train, beside the best."""

    estimate: VisionTrainingEstimate
    times_slower: float
    """Its whole run over that of the best."""
    times_dearer: float | None
    """Its cost over that of the best; None where a price is missing."""
    why: str


class VisionTrainingPlan(
    PlanPart, frozen=True, kw_only=True, tag_field="record", tag="vision-training-plan"
):
    """The answer of one search over clusters, batches, precisions, layouts and compilation."""

    model: str
    image_size: tuple[int, int]
    """Height and width of an image, in pixels."""
    images: float
    """Images of one epoch."""
    epochs: float
    objective: Objective
    most_global_batch: int
    best: VisionTrainingEstimate
    clusters: list[VisionCandidate]
    """The best of every cluster, the best of all first."""
    knobs: list[KnobValue]
    """The best that is left on the best cluster when one knob is held."""
    searched: int
    feasible: int
    """Judged candidates that fit in memory and that the fit has ground for."""
    without_ground: list[str]
    """What was left out because no published row is like it, one sentence each."""
    seconds: float
    """The time that the search itself took."""
    assumed: list[str]


class InferenceOption(PlanPart, frozen=True, kw_only=True):
    """One device with the settings that suit it best."""

    device: str
    precision: str
    memory_format: str
    software: str
    batch: int
    latency_seconds: float
    interval: tuple[float, float]
    """Latency seconds between which 80 of 100 such runs are expected to lie."""
    response_seconds: float
    """Upper end of the latency, and the wait of the first image while its batch fills."""
    images_per_second: float
    """The throughput of one device."""
    bound: VisionBound
    num_devices: int
    """For the rate that was asked for; 1 where none was."""
    usd_per_hour: float | None
    """The price of all devices; None where none is on record."""
    usd_per_million_images: float | None
    """At the rate that was asked for; where none was, with the device always busy."""


class VisionInferencePlan(
    PlanPart, frozen=True, kw_only=True, tag_field="record", tag="vision-inference-plan"
):
    """The answer of one search over devices, precisions, runtimes and batches."""

    model: str
    image_size: tuple[int, int]
    """Height and width of an image, in pixels."""
    images_per_second: float | None
    """The rate that was asked for."""
    deadline_seconds: float | None
    best: InferenceOption
    options: list[InferenceOption]
    """The best of every device, the best of all first."""
    missed: list[str]
    """Devices that cannot, and by how much, one sentence each."""
    searched: int
    feasible: int
    without_ground: list[str]
    """What was left out because no published row is like it, one sentence each."""
    seconds: float
    """The time that the search itself took."""
    assumed: list[str]
