"""What theory says of a network that looks at images, in training and in inference.

The field names are the JSON contract of `ridgeline predict training` and `predict inference` for
such networks; those of language models stand in `estimate.py` and `serving_plan.py`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ridgeline.records.estimate import CoefficientChange, Fit
from ridgeline.records.finite import Computed

VisionBound = Literal["compute", "memory", "launches", "communication", "input"]


class KeptLayer(Computed, frozen=True, kw_only=True):
    """Activations of one size that wait for the backward pass."""

    layer: str
    """The first layer that asks for them."""
    written_by: str
    """Function of the operator that wrote them, such as `batch_norm`."""
    element_bytes: int
    count: int
    """Tensors of this size."""
    total_bytes: float
    """The bytes of all tensors of this size, with the whole batch."""


class VisionMemory(Computed, frozen=True, kw_only=True):
    """Peak memory of one device, against what it has."""

    terms: dict[str, float]
    """Bytes of each part: weights, gradients, optimizer, casts, activations, images, …"""
    peak_bytes: float
    capacity_bytes: float
    verdict: Fit
    largest_batch: int
    """The most images of one device that fit below 92 % of its memory; 0: not even one."""
    layers: list[KeptLayer] = msgspec.field(default_factory=list)
    """Where most of the activations lie, in training."""


class InputPipeline(Computed, frozen=True, kw_only=True):
    """What must be read, decoded and copied, over all devices."""

    decode_cores: float
    """Processor cores that decode and augment, at the least."""
    cores_given: float | None
    """Cores that there are; None: enough."""
    storage_bytes_per_second: float
    host_to_device_bytes_per_second: float
    """The traffic to all devices together."""


class VisionRun(Computed, frozen=True, kw_only=True):
    """A whole training run at the predicted step, without validation and failures."""

    images: float
    """Images of one epoch."""
    epochs: float
    steps: int
    epoch_seconds: float
    run_seconds: float
    run_interval: tuple[float, float]
    """Seconds between which 80 of 100 such runs are expected to lie."""
    device_hours: float
    usd: float | None
    """None where no price of the device is on record."""
    usd_per_device_hour: float | None
    kilowatt_hours: float | None


class DataParallelPoint(Computed, frozen=True, kw_only=True):
    """The same step of every device on another number of them."""

    num_devices: int
    global_batch: int
    images_per_second: float
    """Images that all devices together train on."""
    exposed_seconds: float
    """The part of the all-reduce of one step that nothing hides."""
    efficiency: float
    """Images per second of one device over those of a device alone."""


class VisionTrainingEstimate(
    Computed, frozen=True, kw_only=True, tag_field="record", tag="vision-training-estimate"
):
    """One predicted training step of a network for images."""

    model: str
    cluster: str
    """The cluster, written `COUNTxDEVICE`."""
    image_size: tuple[int, int]
    """Height and width of an image, in pixels."""
    batch: int
    """Images of one device in one step."""
    global_batch: int
    precision: str
    memory_format: str
    software: str
    optimizer: str
    step_seconds: float
    interval: tuple[float, float]
    """Step seconds between which 80 of 100 such runs are expected to lie."""
    images_per_second: float
    """Images that all devices together train on."""
    images_per_second_per_gpu: float
    mfu: float
    """FLOPs of the network (three forward passes) over the dense peak of the precision."""
    breakdown: dict[str, float]
    """Term → seconds of the step; the terms add up to `step_seconds`."""
    bound: VisionBound
    all_reduce_seconds: float
    """The all-reduce of the gradients, hidden or not."""
    scaling_efficiency: float
    """Images per second of one device over those of a device alone."""
    scaling: list[DataParallelPoint]
    """Other numbers of devices, each with the same batch; empty on one device."""
    memory: VisionMemory
    input: InputPipeline
    run: VisionRun | None
    assumed: list[str]
    """Inputs and coefficients that were assumed rather than measured or given."""
    calibrated: list[CoefficientChange] = msgspec.field(default_factory=list)
    """What the user's own measurements moved."""


class SettingChange(Computed, frozen=True, kw_only=True):
    """What one other setting would make of the same question."""

    change: str
    """The setting, such as `channels_last` or `tensorrt int8`."""
    latency_seconds: float
    times_faster: float


class Deadline(Computed, frozen=True, kw_only=True):
    """How the predicted latency stands to the time that a frame leaves."""

    period_seconds: float
    met: Literal["yes", "no", "uncertain"]
    """`uncertain` where the period lies inside the interval."""
    margin_seconds: float
    """What the period leaves above the latency; negative where it is missed by so much."""


class VisionInferenceEstimate(
    Computed, frozen=True, kw_only=True, tag_field="record", tag="vision-inference-estimate"
):
    """One predicted forward pass of a network for images."""

    model: str
    device: str
    image_size: tuple[int, int]
    """Height and width of an image, in pixels."""
    batch: int
    precision: str
    memory_format: str
    software: str
    latency_seconds: float
    """One batch, as the median of many; first calls, decoding and copies are not counted."""
    interval: tuple[float, float]
    """Latency seconds between which 80 of 100 such runs are expected to lie."""
    images_per_second: float
    mfu: float
    """FLOPs over the dense peak of the precision."""
    breakdown: dict[str, float]
    """Term → seconds; the terms add up to `latency_seconds`."""
    bound: VisionBound
    memory: VisionMemory
    changes: list[SettingChange]
    """What other layouts, formats and runtimes would change, fastest first."""
    deadline: Deadline | None
    notes: list[str]
    """What the figures say, in sentences."""
    assumed: list[str] = msgspec.field(default_factory=list)
    """Inputs and coefficients that were assumed rather than measured or given."""
    calibrated: list[CoefficientChange] = msgspec.field(default_factory=list)
    """What the user's own measurements moved."""
