"""How many parts of each kind a workload needs, and why some will not do.

A measured load is a part of a GPU: it is moved to another device by the smaller of the ratios of
peak and bandwidth, since nobody said which of the two it waits for. A predicted one goes through
the serving model, which is told of a part as of a small device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline import quantity
from ridgeline.cost.serving.setting import check_generates
from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.hardware.facts import Device
from ridgeline.models import load_model
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.serving.coefficients import read_calibration
from ridgeline.plan.serving.plan import ServingTask, capacity_of
from ridgeline.plan.serving.question import ServingQuestion, doubts
from ridgeline.queue.share.slots import GIVES, SlotKind
from ridgeline.queue.share.workload import ISOLATION, ServedWorkload

MOST_PARTS = 4096
"""A workload that would need more of a kind is better served by a larger kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartChoice:
    """So many parts of one kind serve a workload."""

    kind: SlotKind
    count: int
    replicas: int
    used_share: float
    """The load, as a part of what the parts can do without headroom."""


def part_choices(
    one: ServedWorkload, kinds: Sequence[SlotKind], *, headroom: float
) -> list[PartChoice]:
    """Every kind that will do.

    Raises:
        InputError: None will; why not.
    """
    allowed = [kind for kind in kinds if _isolated(one, kind)]
    if one.gpus > 1:
        allowed = [kind for kind in allowed if kind.mode == "whole"]
    if not allowed:
        raise InputError(
            f"workload {one.name}: no way of sharing gives it isolation {one.isolation} and"
            f" {one.gpus} GPUs a replica; allow more with --allow, or ask for less"
        )
    loads = _predicted(one, allowed, headroom) if one.predicted else _measured(one, allowed)
    found = []
    for kind, load in zip(allowed, loads, strict=True):
        if not math.isfinite(load):
            continue
        replicas = max(one.replicas, math.ceil(load / (1.0 - headroom) - 1e-9))
        if replicas * one.gpus <= MOST_PARTS:
            found.append(
                PartChoice(
                    kind=kind, count=replicas * one.gpus, replicas=replicas,
                    used_share=load / replicas,
                )
            )  # fmt: skip
    if not found:
        largest = max(allowed, key=lambda kind: kind.memory_bytes)
        raise InputError(
            f"workload {one.name}: nothing holds it: the largest part is {largest.name} of"
            f" {largest.device.name} with {quantity.memory(largest.memory_bytes * one.gpus)}; raise"
            " gpus, or name a larger --device"
        )
    return found


def in_doubt(one: ServedWorkload, device: Device) -> list[str]:
    """What of a predicted load no run is near to that the serving model was fitted to."""
    return doubts(_on(one, load_model(one.model), device), read_calibration())


def _on(one: ServedWorkload, model: ModelSpec, device: Device) -> ServingQuestion:
    """A replica of a workload on a device."""
    return ServingQuestion(
        model=model, device=device, tp=one.gpus, weights=one.weights, engine=one.engine,
        prompt=one.prompt, completion=one.answer,
    )  # fmt: skip


def _isolated(one: ServedWorkload, kind: SlotKind) -> bool:
    return ISOLATION.index(GIVES[kind.mode]) >= ISOLATION.index(one.isolation)


def _measured(one: ServedWorkload, kinds: Sequence[SlotKind]) -> list[float]:
    """Replicas' worth of load by kind; infinite where the memory does not fit."""
    assert one.gpu_share is not None
    assert one.memory_bytes is not None
    devices = {kind.device.name for kind in kinds}
    if not one.measured_on and len(devices) > 1:
        raise InputError(
            f"workload {one.name}: gpu_share is of which device? name it as measured_on, since"
            " several may be used"
        )
    found = []
    for kind in kinds:
        fits = one.memory_bytes <= kind.memory_bytes * one.gpus
        scale = _slower(one.measured_on, kind.device) if one.measured_on else 1.0
        found.append(one.gpu_share * scale / (kind.share * one.gpus) if fits else math.inf)
    return found


def _slower(measured_on: str, part: Device) -> float:
    """How much longer the same work takes on a device, whatever it waits for."""
    known = catalogue.device(measured_on)
    if known.name == part.name:
        return 1.0
    dtype = known.training_dtype if known.training_dtype in part.peaks else "fp32"
    peaks = known.peak(dtype) / part.peak(dtype)
    rates = known.memory.bandwidth_bytes_per_second / part.memory.bandwidth_bytes_per_second
    return max(peaks, rates)


def _predicted(one: ServedWorkload, kinds: Sequence[SlotKind], headroom: float) -> list[float]:
    """Rates that the serving model predicts, with mean latencies within the targets."""
    assert one.rate is not None
    known = read_calibration()
    model = load_model(one.model)
    check_generates(model)
    replicas = [_on(one, model, kind.as_device) for kind in kinds]
    task = ServingTask(
        model=model, prompt=one.prompt, completion=one.answer, rate=one.rate,
        ttft_seconds=one.ttft_seconds, itl_seconds=one.itl_seconds,
        engine=one.engine, headroom=headroom,
    )  # fmt: skip
    rates = capacity_of(task, replicas, known).requests_per_second.tolist()
    # `capacity_of` keeps the headroom free already.
    return [one.rate / rate * (1.0 - headroom) if rate > 0.0 else math.inf for rate in rates]
