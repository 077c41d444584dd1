"""One forward pass of a network for images on one device (`predict inference`).

Latency is that of one batch, as the median of many calls: first calls, decoding and copies are not
in it. What would change it is the same estimate with one or two other settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ridgeline import quantity
from ridgeline.cost.training.estimate import TIGHT
from ridgeline.cost.vision.coefficients import SMALL_BATCH
from ridgeline.cost.vision.memory import inference_memory
from ridgeline.cost.vision.work import is_processor
from ridgeline.errors import InputError
from ridgeline.hardware.catalogue import device as find_device
from ridgeline.hardware.facts import Device
from ridgeline.models.vision.network import VisionNetwork
from ridgeline.plan.vision.measured import (
    AS_SHIPPED,
    MeasuredImages,
    SystemPace,
    measured_network,
    pace_of,
)
from ridgeline.plan.vision.offered import has_layouts, has_products
from ridgeline.plan.vision.question import (
    ELEMENT_BYTES,
    MemoryFormat,
    check_batch,
    check_memory_format,
    inference_precision,
    network_of,
    peak_flops,
)
from ridgeline.plan.vision.timing import Timing, fitted_software, time_of
from ridgeline.plan.vision.training import verdict_of
from ridgeline.records.vision_estimate import (
    Deadline,
    SettingChange,
    VisionInferenceEstimate,
    VisionMemory,
)

WORTH_SAYING = 1.03
"""A change that is less than so many times faster is not shown."""
RUNTIMES = ("compile", "tensorrt", "onnxruntime", "openvino")
"""Software that is tried instead, where the fit has seen it on such a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionInferenceTask:
    """One way to run a network for images, checked."""

    network: VisionNetwork
    device: Device
    batch: int
    precision: str
    memory_format: MemoryFormat
    software: str
    threads: int | None
    pace: SystemPace = AS_SHIPPED

    @property
    def timing(self) -> Timing:
        """The time of one batch."""
        return time_of(
            self.network,
            self.device,
            task="infer",
            batch=self.batch,
            precision=self.precision,
            memory_format=self.memory_format,
            software=self.software,
            threads=self.threads,
            pace=self.pace,
        )


def predict_vision_inference(
    model: str | VisionNetwork,
    device: str | Device,
    *,
    batch: int = 1,
    image_size: int | tuple[int, int] | None = None,
    precision: str | None = None,
    memory_format: str = "contiguous",
    software: str = "eager",
    threads: int | None = None,
    period_seconds: float | None = None,
    measured: Sequence[MeasuredImages] = (),
) -> VisionInferenceEstimate:
    """Predict latency and throughput of a network for images on one device.

    Args:
        model: A preset's name, or a network as `models/vision` has it.
        device: A device's name, or a `Device`.
        batch: Images of one call.
        image_size: Height and width, or one number for both; by default the model's own.
        precision: `fp32`, `tf32`, `bf16`, `fp16` or `int8`; by default 16 bits where there are any.
        memory_format: `contiguous` or `channels_last`.
        software: What runs it: `eager`, `compile`, `tensorrt`, …
        threads: Of a processor; by default all.
        period_seconds: The time that a frame leaves; adds whether it is met.
        measured: One to three times of your own on this device, under this software.

    Raises:
        InputError: The question makes no sense, or the fit has no ground for it.

    >>> found = predict_vision_inference("resnet50", "a100", batch=64)
    >>> found.precision, found.memory.verdict
    ('fp16', 'fits')
    """
    part = find_device(device) if isinstance(device, str) else device
    task = VisionInferenceTask(
        network=network_of(model, image_size),
        device=part,
        batch=check_batch(batch),
        precision=inference_precision(part, precision),
        memory_format=check_memory_format(memory_format),
        software=software,
        threads=threads,
    )
    _check_threads(part, threads)
    if period_seconds is not None and not period_seconds > 0:
        raise InputError(f"--period {period_seconds:g}: give a time above 0, as 33ms")
    return estimate_inference(replace(task, pace=_pace(task, measured)), period_seconds)


def _pace(task: VisionInferenceTask, measured: Sequence[MeasuredImages]) -> SystemPace:
    def asked(one: MeasuredImages) -> VisionInferenceTask:
        other = replace(task, network=measured_network(one, task.network))
        return other if one.batch is None else replace(other, batch=check_batch(one.batch))

    return pace_of(
        measured,
        kind=lambda one: "latency" if asked(one).batch < SMALL_BATCH else "throughput",
        predict=lambda one: (asked(one).timing.seconds, asked(one).batch),
    )


def estimate_inference(
    task: VisionInferenceTask, period_seconds: float | None = None
) -> VisionInferenceEstimate:
    """The estimate of a task that is already checked, with what would change it."""
    timing = task.timing
    peak = peak_flops(task.device, task.precision)
    assert peak is not None
    return VisionInferenceEstimate(
        model=task.network.name,
        device=task.device.name,
        image_size=task.network.image_size,
        batch=task.batch,
        precision=task.precision,
        memory_format=task.memory_format,
        software=task.software,
        latency_seconds=timing.seconds,
        interval=timing.interval,
        images_per_second=task.batch / timing.seconds,
        mfu=2.0 * task.network.macs * task.batch / timing.seconds / peak,
        breakdown=timing.terms,
        bound=timing.bound,
        memory=memory_of(task),
        changes=_changes(task, timing.seconds),
        deadline=None if period_seconds is None else _deadline(timing, period_seconds),
        notes=_notes(task, timing),
        assumed=[*task.device.assumed, *timing.assumed],
        calibrated=task.pace.changes,
    )


def _check_threads(part: Device, threads: int | None) -> None:
    if threads is None:
        return
    if not is_processor(part):
        raise InputError(f"--threads {threads}: {part.name} is no processor; leave it out")
    if threads < 1:
        raise InputError(f"--threads {threads}: give 1 or more")


def memory_of(task: VisionInferenceTask) -> VisionMemory:
    """What the device holds while the network answers."""
    need = inference_memory(
        task.network, ELEMENT_BYTES[task.precision], on_gpu=not is_processor(task.device)
    )
    capacity = float(task.device.memory.usable_bytes)
    peak = need.total(task.batch)
    return VisionMemory(
        terms=need.terms(task.batch),
        peak_bytes=peak,
        capacity_bytes=capacity,
        verdict=verdict_of(peak, capacity),
        largest_batch=need.largest_batch(TIGHT * capacity),
    )


def _changes(task: VisionInferenceTask, before: float) -> list[SettingChange]:
    """Other settings that are faster, fastest first; those without ground are left out."""
    found: dict[str, SettingChange] = {}
    for words, other in _others(task):
        try:
            seconds = other.timing.seconds
        except InputError:  # no published row is like it: nothing is said of it
            continue
        if before / seconds >= WORTH_SAYING:
            found[words] = SettingChange(
                change=words, latency_seconds=seconds, times_faster=before / seconds
            )
    return sorted(found.values(), key=lambda one: one.latency_seconds)


def _others(task: VisionInferenceTask) -> Iterator[tuple[str, VisionInferenceTask]]:
    """The same question with another layout, precision or runtime, and with the usual pairs."""
    if task.memory_format == "contiguous" and has_layouts(task.network, task.software):
        yield "channels_last", replace(task, memory_format="channels_last")
    lower = [
        name
        for name in ("fp16", "int8")
        if peak_flops(task.device, name) is not None
        and ELEMENT_BYTES[name] < ELEMENT_BYTES[task.precision]
    ]
    for name in lower:
        if has_products(task.device, task.software, name):
            yield name, replace(task, precision=name)
    fitted = fitted_software(task.device)
    for software in RUNTIMES:
        if software == task.software or software not in fitted:
            continue
        other = replace(task, software=software)
        yield software, other
        for name in lower:
            if has_products(task.device, software, name):
                yield f"{software} {name}", replace(other, precision=name)


def _deadline(timing: Timing, period_seconds: float) -> Deadline:
    low, high = timing.interval
    met = "yes" if high <= period_seconds else "no" if low > period_seconds else "uncertain"
    return Deadline(
        period_seconds=period_seconds,
        met=met,  # type: ignore[arg-type]  # one of the three words above
        margin_seconds=period_seconds - timing.seconds,
    )


def _notes(task: VisionInferenceTask, timing: Timing) -> list[str]:
    if timing.bound != "launches":
        return []
    busy = timing.seconds - timing.terms["launches"]
    operators = sum(one.count for one in task.network.operators)
    cure = "a larger batch hides that, faster arithmetic does not"
    if task.software in ("eager", "compile"):
        cure = f'a CUDA graph (torch.compile mode="reduce-overhead") or TensorRT removes and {cure}'
    sentence = (
        f"launch-bound: the device works {quantity.seconds(busy)} of"
        f" {quantity.seconds(timing.seconds)}, the rest is launching {operators} operators; {cure}"
    )
    return [sentence]
