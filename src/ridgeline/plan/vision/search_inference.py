"""Which device, precision, runtime and batch answer a rate of images or a deadline best.

A larger batch is cheaper per image and slower to answer: its first image waits until the batch is
full, so that under full load an image is answered within latency · (2 - 1 / batch).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ridgeline import quantity
from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.hardware.facts import Device
from ridgeline.models.vision.network import VisionNetwork
from ridgeline.plan.vision.inference import RUNTIMES, VisionInferenceTask, memory_of
from ridgeline.plan.vision.offered import has_layouts, has_products
from ridgeline.plan.vision.question import (
    INFERENCE_PRECISIONS,
    MEMORY_FORMATS,
    check_batch,
    check_memory_format,
    network_of,
    peak_flops,
)
from ridgeline.plan.vision.timing import Timing, fitted_software
from ridgeline.records.vision_plan import InferenceOption, VisionInferencePlan

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
PRECISIONS = ("fp32", "fp16", "bf16", "int8")
"""Tried by default where a device has them; bf16 where it has no fp16."""
_WAIT = (
    "an image waits until its batch is full: it is answered within latency x (2 - 1 / batch), by"
    " the upper end of the interval"
)
_MONEY = "prices are the medians on record; hosts, networks and idle time come on top"


@dataclass(slots=True, kw_only=True)
class Weighed:
    """What a search has seen of one device, and what it must reach."""

    rate: float | None
    deadline_seconds: float | None
    options: list[InferenceOption] = field(default_factory=list)
    soonest_seconds: float = math.inf
    without_ground: dict[str, None] = field(default_factory=dict)
    """Sentences, in the order in which they were met."""
    searched: int = 0


def plan_vision_inference(
    model: str | VisionNetwork,
    *,
    rate: float | None = None,
    deadline_seconds: float | None = None,
    image_size: int | tuple[int, int] | None = None,
    devices: Sequence[str] = (),
    precisions: Sequence[str] = (),
    software: Sequence[str] = (),
    batches: Sequence[int] = (),
) -> VisionInferencePlan:
    """The cheapest way to answer so many images per second, or the soonest, on every device.

    Args:
        model: A preset's name, or a network as `models/vision` has it.
        rate: Images per second to answer; with it devices are counted.
        deadline_seconds: Within which an image must be answered, by the upper end of the interval.
        image_size: Height and width, or one number for both; by default the model's own.
        devices: To allow; by default all on record.
        precisions: To allow; by default 32, 16 and 8 bits where the device has them.
        software: To allow; by default all that the fit has seen on a device.
        batches: Images of one call, to allow; by default powers of two up to 128.

    Raises:
        InputError: Neither a rate nor a deadline was given, nothing reaches it, or the fit has no
            ground.

    >>> plan = plan_vision_inference("resnet50", deadline_seconds=0.02, devices=["t4", "a100"])
    >>> plan.best.response_seconds < 0.02
    True
    """
    if rate is None and deadline_seconds is None:
        raise InputError("--rate or --deadline is missing: say what must be reached")
    for option, value in (("--rate", rate), ("--deadline", deadline_seconds)):
        if value is not None and not 0 < value < 1e12:
            raise InputError(f"{option} {value:g}: give a number above 0")
    network = network_of(model, image_size)
    sizes = [check_batch(one) for one in batches] or list(BATCHES)
    parts = [catalogue.device(name) for name in devices] or catalogue.devices()
    start = time.perf_counter()
    seen: dict[str, Weighed] = {}
    for part in parts:
        weighed = Weighed(rate=rate, deadline_seconds=deadline_seconds)
        for task in _tasks(network, part, precisions, software, sizes):
            _weigh(task, weighed)
        seen[part.name] = weighed
    assumed = [f"{part.name}: {said}" for part in parts for said in part.assumed]
    return _plan(network, seen, assumed, time.perf_counter() - start)


def _tasks(
    network: VisionNetwork,
    part: Device,
    precisions: Sequence[str],
    software: Sequence[str],
    batches: Sequence[int],
) -> Iterator[VisionInferenceTask]:
    for precision in precisions or PRECISIONS:
        if precision not in INFERENCE_PRECISIONS:
            raise InputError(
                f"--precision {precision}: use one of {', '.join(INFERENCE_PRECISIONS)}"
            )
        if peak_flops(part, precision) is None:
            continue
        if not precisions and precision == "bf16" and "fp16" in part.peaks:
            continue
        for runtime in software or _usual_software(part):
            if not software and not has_products(part, runtime, precision):
                continue
            for layout in MEMORY_FORMATS if has_layouts(network, runtime) else MEMORY_FORMATS[:1]:
                for batch in batches:
                    yield VisionInferenceTask(
                        network=network,
                        device=part,
                        batch=batch,
                        precision=precision,
                        memory_format=check_memory_format(layout),
                        software=runtime,
                        threads=None,
                    )


def _usual_software(part: Device) -> list[str]:
    """PyTorch and the runtimes that the fit has seen on such a device."""
    fitted = fitted_software(part)
    return [name for name in ("eager", *RUNTIMES) if name in fitted]


def _weigh(task: VisionInferenceTask, weighed: Weighed) -> None:
    weighed.searched += 1
    try:
        timing = task.timing
    except InputError as error:
        weighed.without_ground[str(error)] = None
        return
    if memory_of(task).verdict != "fits":
        return
    response = timing.interval[1] * (2.0 - 1.0 / task.batch)
    weighed.soonest_seconds = min(weighed.soonest_seconds, response)
    if weighed.deadline_seconds is None or response <= weighed.deadline_seconds:
        weighed.options.append(_option(task, timing, response, weighed.rate))


def _option(
    task: VisionInferenceTask, timing: Timing, response: float, rate: float | None
) -> InferenceOption:
    throughput = task.batch / timing.seconds
    count = 1 if rate is None else math.ceil(rate / throughput)
    price = catalogue.typical_usd_per_device_hour(task.device.name)
    hourly = None if price is None else count * price
    answered = throughput if rate is None else rate
    return InferenceOption(
        device=task.device.name,
        precision=task.precision,
        memory_format=task.memory_format,
        software=task.software,
        batch=task.batch,
        latency_seconds=timing.seconds,
        interval=timing.interval,
        response_seconds=response,
        images_per_second=throughput,
        bound=timing.bound,
        num_devices=count,
        usd_per_hour=hourly,
        usd_per_million_images=None if hourly is None else hourly / 3600.0 / answered * 1e6,
    )


def _plan(
    network: VisionNetwork, seen: dict[str, Weighed], assumed: list[str], seconds: float
) -> VisionInferencePlan:
    asked = next(iter(seen.values()))
    ground = dict.fromkeys(line for one in seen.values() for line in one.without_ground)
    options = [min(one.options, key=_rank(one)) for one in seen.values() if one.options]
    missed = [
        f"{name}: {quantity.seconds(one.soonest_seconds)} at best"
        for name, one in seen.items()
        if not one.options and math.isfinite(one.soonest_seconds)
    ]
    if not options:
        if missed and asked.deadline_seconds is not None:
            limit = quantity.seconds(asked.deadline_seconds)
            raise InputError(
                f"--deadline {limit}: no device answers {network.name} in time"
                f" ({'; '.join(missed[:4])}); allow more time, or a smaller network or image"
            )
        raise InputError(next(iter(ground), f"{network.name}: no device of these can run it"))
    options.sort(key=_rank(asked))
    return VisionInferencePlan(
        model=network.name,
        image_size=network.image_size,
        images_per_second=asked.rate,
        deadline_seconds=asked.deadline_seconds,
        best=options[0],
        options=options,
        missed=missed,
        searched=sum(one.searched for one in seen.values()),
        feasible=sum(len(one.options) for one in seen.values()),
        without_ground=list(ground),
        seconds=seconds,
        assumed=[*assumed, _WAIT, _MONEY],
    )


def _rank(weighed: Weighed) -> Callable[[InferenceOption], tuple[float, float, float]]:
    return _by_cost if weighed.rate is not None else _by_response


def _by_cost(one: InferenceOption) -> tuple[float, float, float]:
    """Cheapest first, what has no price last, of those the fewest and the soonest."""
    price = one.usd_per_hour if one.usd_per_hour is not None else math.inf
    return (price, one.num_devices, one.response_seconds)


def _by_response(one: InferenceOption) -> tuple[float, float, float]:
    return (one.response_seconds, -one.images_per_second, 0.0)
