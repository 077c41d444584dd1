"""One training step of a network for images on a cluster, and the whole run (`predict training`).

Every device holds the whole network and takes its own images; gradients are reduced over the
cluster's links. The time of one device is that of `cost/vision/`, memory, loading and the exposed
all-reduce come on top.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.cost import money
from ridgeline.cost.training.estimate import TIGHT
from ridgeline.cost.vision.data_parallel import ParallelStep
from ridgeline.cost.vision.input_pipeline import (
    STORED_BYTES,
    core_seconds,
    input_need,
)
from ridgeline.cost.vision.memory import (
    OPTIMIZER_BYTES,
    MemoryNeed,
    Optimizer,
    activation_layers,
    training_memory,
)
from ridgeline.cost.vision.work import is_processor
from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.hardware.cluster import Cluster, parse_cluster
from ridgeline.models.vision.network import VisionNetwork
from ridgeline.plan.training.coefficients import coefficients_for
from ridgeline.plan.vision.data_parallel import step_on
from ridgeline.plan.vision.measured import (
    AS_SHIPPED,
    MeasuredImages,
    SystemPace,
    measured_network,
    pace_of,
)
from ridgeline.plan.vision.question import (
    MemoryFormat,
    check_batch,
    check_memory_format,
    network_of,
    numerics_of,
    peak_flops,
    training_precision,
)
from ridgeline.plan.vision.timing import Timing, time_of
from ridgeline.records.estimate import Fit
from ridgeline.records.vision_estimate import (
    DataParallelPoint,
    InputPipeline,
    KeptLayer,
    VisionBound,
    VisionMemory,
    VisionRun,
    VisionTrainingEstimate,
)

MOST_LAYERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTrainingTask:
    """One training run of a network for images, checked."""

    network: VisionNetwork
    cluster: Cluster
    batch: int
    """Images of one device in one step."""
    micro_batch: int
    """Images of one pass; fewer than `batch`: gradients are accumulated."""
    precision: str
    memory_format: MemoryFormat
    compiled: bool
    optimizer: Optimizer
    images: float | None
    epochs: float
    overlap: float | None = None
    """Share of the backward pass under which gradients travel; None: as published runs have it."""
    cores: float | None
    """Cores that decode, over the whole cluster; None: enough."""
    pace: SystemPace = AS_SHIPPED


def predict_vision_training(
    model: str | VisionNetwork,
    cluster: str | Cluster,
    *,
    batch: int,
    micro_batch: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    precision: str | None = None,
    memory_format: str = "contiguous",
    compiled: bool = False,
    optimizer: str = "sgd",
    images: float | None = None,
    epochs: float = 1.0,
    cores_per_device: float | None = None,
    overlap: float | None = None,
    measured: Sequence[MeasuredImages] = (),
) -> VisionTrainingEstimate:
    """Predict a training step of a network for images, and the run of so many epochs.

    Args:
        model: A preset's name, or a network as `models/vision` has it.
        cluster: As `8xA100`, or a `Cluster`.
        batch: Images of one device in one step.
        micro_batch: Images of one pass of it, where gradients are accumulated.
        image_size: Height and width, or one number for both; by default the model's own.
        precision: `fp32`, `tf32`, or autocast to `bf16` or `fp16`; by default the device's 16 bits.
        memory_format: `contiguous` or `channels_last`.
        compiled: Whether `torch.compile` fuses element-wise chains.
        optimizer: `sgd` (with momentum) or `adamw`.
        images: Images of one epoch; adds the whole run's time and cost.
        epochs: Passes over them.
        cores_per_device: Cores that decode images, for each device; by default enough.
        overlap: Share of the backward pass under which gradients travel.
        measured: One to three steps of your own on this cluster.

    Raises:
        InputError: The question makes no sense, or the fit has no ground for it.

    >>> found = predict_vision_training("resnet50", "8xA100", batch=256)
    >>> found.memory.verdict, found.global_batch
    ('fits', 2048)
    """
    where = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    if optimizer not in OPTIMIZER_BYTES:
        raise InputError(f"--optimizer {optimizer}: use {' or '.join(OPTIMIZER_BYTES)}")
    task = VisionTrainingTask(
        network=network_of(model, image_size),
        cluster=where,
        batch=check_batch(batch),
        micro_batch=batch if micro_batch is None else micro_batch,
        precision=training_precision(where.device, precision),
        memory_format=check_memory_format(memory_format),
        compiled=compiled,
        optimizer="adamw" if optimizer == "adamw" else "sgd",
        images=images,
        epochs=epochs,
        overlap=overlap,
        cores=None if cores_per_device is None else cores_per_device * where.num_devices,
    )
    _check(task)
    return estimate_training(replace(task, pace=_pace(task, measured)))


def _pace(task: VisionTrainingTask, measured: Sequence[MeasuredImages]) -> SystemPace:
    def asked(one: MeasuredImages) -> VisionTrainingTask:
        other = replace(task, network=measured_network(one, task.network))
        if one.batch is None:
            return other
        return replace(other, batch=check_batch(one.batch), micro_batch=one.batch)

    def predict(one: MeasuredImages) -> tuple[float, int]:
        found = estimate_training(asked(one))
        return found.step_seconds, found.global_batch

    return pace_of(measured, kind=lambda _: "training", predict=predict)


def estimate_training(task: VisionTrainingTask) -> VisionTrainingEstimate:
    """The estimate of a task that is already checked."""
    timing = time_of(
        task.network,
        task.cluster.device,
        task="train",
        batch=task.micro_batch,
        precision=task.precision,
        memory_format=task.memory_format,
        software="compile" if task.compiled else "eager",
        pace=task.pace,
    )
    passes = task.batch // task.micro_batch
    step = _step(task, timing, passes)
    devices = task.cluster.num_devices
    rate = devices * task.batch / step.seconds
    spread = tuple(end / timing.seconds for end in timing.interval)
    interval = (step.seconds * spread[0], step.seconds * spread[1])
    breakdown = {name: passes * seconds for name, seconds in timing.terms.items()}
    breakdown |= {"communication": step.communication_seconds, "input": step.waiting_seconds}
    return VisionTrainingEstimate(
        model=task.network.name,
        cluster=f"{devices}x{task.cluster.device.name}",
        image_size=task.network.image_size,
        batch=task.batch,
        global_batch=devices * task.batch,
        precision=task.precision,
        memory_format=task.memory_format,
        software="compile" if task.compiled else "eager",
        optimizer=task.optimizer,
        step_seconds=step.seconds,
        interval=interval,
        images_per_second=rate,
        images_per_second_per_gpu=rate / devices,
        mfu=_mfu(task, step.seconds),
        breakdown=breakdown,
        bound=_bound(step, timing),
        all_reduce_seconds=step.all_reduce_seconds,
        scaling_efficiency=step.compute_seconds / step.seconds,
        scaling=_scaling(task, timing, passes),
        memory=_memory(task),
        input=_pipeline(task, rate),
        run=_run(task, step.seconds, interval),
        assumed=_assumed(task, timing),
        calibrated=task.pace.changes,
    )


def memory_of(task: VisionTrainingTask) -> MemoryNeed:
    """What one device needs, as a function of the images of one pass."""
    return training_memory(
        task.network,
        numerics_of(task.precision),
        optimizer=task.optimizer,
        compiled=task.compiled,
        num_devices=task.cluster.num_devices,
        on_gpu=not is_processor(task.cluster.device),
    )


def verdict_of(peak_bytes: float, capacity_bytes: float) -> Fit:
    """Whether so much fits; above 92 % of a device's memory fragmentation decides."""
    if peak_bytes > capacity_bytes:
        return "oom"
    return "tight" if peak_bytes > TIGHT * capacity_bytes else "fits"


def _check(task: VisionTrainingTask) -> None:
    check_batch(task.micro_batch, "--micro-batch")
    if task.batch % task.micro_batch:
        raise InputError(
            f"--micro-batch {task.micro_batch} does not divide the {task.batch} images of one"
            " device; use a divisor"
        )
    positive = {"--images": task.images, "--epochs": task.epochs, "--cores-per-device": task.cores}
    for option, value in positive.items():
        if value is not None and not 0 < value < 1e15:
            raise InputError(f"{option} {value:g}: give a number above 0")


def _step(task: VisionTrainingTask, timing: Timing, passes: int) -> ParallelStep:
    return step_on(
        task.cluster,
        task.network,
        passes * timing.seconds,
        passes=passes,
        overlap=task.overlap,
        input_seconds=_input_seconds(task),
    )


def _scaling(task: VisionTrainingTask, timing: Timing, passes: int) -> list[DataParallelPoint]:
    """Weak scaling over doublings, up to eight times the cluster."""
    devices = task.cluster.num_devices
    if devices == 1:
        return []
    points = []
    for count in sorted({devices, *(2**power for power in range((8 * devices).bit_length()))}):
        cores = None if task.cores is None else task.cores * count / devices
        step = _step(
            replace(task, cluster=replace(task.cluster, num_devices=count), cores=cores),
            timing,
            passes,
        )
        points.append(
            DataParallelPoint(
                num_devices=count,
                global_batch=count * task.batch,
                images_per_second=count * task.batch / step.seconds,
                exposed_seconds=step.communication_seconds,
                efficiency=step.compute_seconds / step.seconds,
            )
        )
    return points


def _input_seconds(task: VisionTrainingTask) -> float:
    """The least time in which the images of a step are decoded and copied."""
    size, images = task.network.image_size, task.batch * task.cluster.num_devices
    need = input_need(float(task.batch), size)
    copied = need.host_to_device_bytes_per_second / task.cluster.host_bytes_per_second
    decoded = 0.0 if task.cores is None else images * core_seconds(size) / task.cores
    return max(copied, decoded)


def _bound(step: ParallelStep, timing: Timing) -> VisionBound:
    if step.waiting_seconds > 0.05 * step.seconds:
        return "input"
    if step.communication_seconds > max(timing.terms.values()):
        return "communication"
    return timing.bound


def _mfu(task: VisionTrainingTask, seconds: float) -> float:
    peak = peak_flops(task.cluster.device, task.precision)
    assert peak is not None
    return 3 * 2.0 * task.network.macs * task.batch / seconds / peak


def _memory(task: VisionTrainingTask) -> VisionMemory:
    need, capacity = memory_of(task), float(task.cluster.device.memory.usable_bytes)
    peak = need.total(task.micro_batch)
    layers = activation_layers(
        task.network, numerics_of(task.precision), compiled=task.compiled, most=MOST_LAYERS
    )
    return VisionMemory(
        terms=need.terms(task.micro_batch),
        peak_bytes=peak,
        capacity_bytes=capacity,
        verdict=verdict_of(peak, capacity),
        largest_batch=need.largest_batch(TIGHT * capacity),
        layers=[
            KeptLayer(
                layer=one.name,
                written_by=one.written_by,
                element_bytes=one.element_bytes,
                count=one.count,
                total_bytes=float(task.micro_batch * one.image_bytes),
            )
            for one in layers
        ],
    )


def _pipeline(task: VisionTrainingTask, rate: float) -> InputPipeline:
    need = input_need(rate, task.network.image_size)
    return InputPipeline(
        decode_cores=need.decode_cores,
        cores_given=task.cores,
        storage_bytes_per_second=need.storage_bytes_per_second,
        host_to_device_bytes_per_second=need.host_to_device_bytes_per_second,
    )


def _run(
    task: VisionTrainingTask, step_seconds: float, interval: tuple[float, float]
) -> VisionRun | None:
    if task.images is None:
        return None
    devices, part = task.cluster.num_devices, task.cluster.device
    epoch_steps = math.ceil(task.images / (devices * task.batch))
    steps = math.ceil(epoch_steps * task.epochs)
    price = catalogue.typical_usd_per_device_hour(part.name)
    watts = None if part.power is None else part.power.watts
    tariff = money.Tariff(usd_per_device_hour=price, watts=watts)
    spent = money.bill(devices, steps * step_seconds, tariff)
    return VisionRun(
        images=task.images,
        epochs=task.epochs,
        steps=steps,
        epoch_seconds=epoch_steps * step_seconds,
        run_seconds=steps * step_seconds,
        run_interval=(steps * interval[0], steps * interval[1]),
        device_hours=spent.device_hours,
        usd=spent.usd,
        usd_per_device_hour=price,
        kilowatt_hours=spent.energy_kilowatt_hours,
    )


def _assumed(task: VisionTrainingTask, timing: Timing) -> list[str]:
    rates = coefficients_for(task.cluster.device)
    loaded = 1.0 / core_seconds(task.network.image_size)
    sentences = [*timing.assumed]
    if task.cluster.num_devices > 1:
        sentences += task.cluster.assumed
        sentences.append(
            f"collectives reach {rates.domain:.0%} of the fabric and {rates.network:.0%} of the"
            " network, as fitted to runs of language models"
        )
    sentences.append(
        f"a core decodes and augments {loaded:,.0f} images/s of {STORED_BYTES / 1e3:.0f} kB, as"
        " ImageNet has them, nothing else of a loader counted"
    )
    if task.cores is None:
        sentences.append("there are cores enough; --cores-per-device says how many there are")
    if task.images is not None:
        sentences.append("the run is its predicted steps alone: no validation, no failures")
    sentences.append("memory counts 256 MiB of workspace and 0.5 GB of CUDA context as usual")
    return sentences
