"""A perception system as one map: data, training, compression, serving, vehicle.

One network for images goes through all of it. The data part is what training must be fed with, the
training part a whole run, the compression part its weights in fewer bits, the serving part the same
devices labelling images, the vehicle part one frame on another device. Every number is that of the
command which the part names; gains of techniques are those measured over public scripts.
"""

from __future__ import annotations

import functools
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ridgeline import quantity
from ridgeline.cost import money
from ridgeline.hardware import catalogue
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.models.vision.network import VisionNetwork
from ridgeline.models.vision.presets import load_network
from ridgeline.plan.vision.inference import predict_vision_inference
from ridgeline.plan.vision.training import predict_vision_training
from ridgeline.records.input_file import read_toml
from ridgeline.records.system_map import (
    PartGain,
    PartName,
    PredictedChange,
    SystemMap,
    SystemPart,
)
from ridgeline.records.technique_card import measured_gains
from ridgeline.records.vision_estimate import VisionInferenceEstimate, VisionTrainingEstimate

WIDTHS = {"fp32": 4.0, "16 bits": 2.0, "int8": 1.0, "int4": 0.5}
SERVED_BATCH = 64
MILLION = 1e6
LIMITS = {
    "compute": "arithmetic: fewer FLOPs or fewer bits would move it",
    "memory": "memory bandwidth: fusing, channels last and fewer bits would move it",
    "launches": "launching kernels: a larger batch, graphs or a runtime would move it",
    "communication": "the gradients' way over the network: overlap or a larger batch would move it",
    "input": "its input: more cores, or decoding once, would move it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemQuestion:
    """One system that is asked about."""

    model: str
    cluster: str
    """Where it is trained and served, as `8xA100`."""
    vehicle: str
    """The device that it ends on."""
    batch: int = 256
    """Images of one device in one step of training."""
    images: float = 1_281_167.0
    epochs: float = 90.0
    cores_per_device: float = 12.0
    """Cores that decode, for each device."""
    period_seconds: float = 0.033
    """Between two frames of the camera."""
    precision: str = "fp16"
    """The precision in which the vehicle computes."""
    shown: PartName = "training"


def predict_system(question: SystemQuestion) -> SystemMap:
    """Every part of a perception system, and the one that holds it back.

    >>> found = predict_system(SystemQuestion(model="resnet50", cluster="8xA100", vehicle="orin"))
    >>> [part.part for part in found.parts]
    ['data', 'training', 'compression', 'serving', 'vehicle']

    Raises:
        InputError: The question makes no sense.
    """
    network = load_network(question.model)
    cluster = parse_cluster(question.cluster)
    training = predict_vision_training(
        question.model,
        cluster,
        batch=question.batch,
        images=question.images,
        epochs=question.epochs,
        cores_per_device=question.cores_per_device,
    )
    served = predict_vision_inference(question.model, cluster.device, batch=SERVED_BATCH)
    vehicle = predict_vision_inference(
        question.model,
        question.vehicle,
        precision=question.precision,
        software="tensorrt" if _takes_tensorrt(question.vehicle) else "eager",
        period_seconds=question.period_seconds,
    )
    parts = [
        _data(question, training),
        _training(question, training),
        _compression(network),
        _serving(question, served, cluster.num_devices),
        _vehicle(question, vehicle),
    ]
    tightest, why = _tightest(training, vehicle)
    return SystemMap(
        model=network.name,
        cluster=training.cluster,
        vehicle=vehicle.device,
        parts=parts,
        shown=question.shown,
        tightest=tightest,
        why_tightest=why,
        assumed=[*training.assumed, *vehicle.assumed],
    )


def _takes_tensorrt(vehicle: str) -> bool:
    return catalogue.device(vehicle).vendor.casefold() == "nvidia"


def _data(question: SystemQuestion, found: VisionTrainingEstimate) -> SystemPart:
    feed = found.input
    waits = found.breakdown["input"]
    there = quantity.count(feed.cores_given or 0.0)
    # Of the images that the devices would take if they never waited.
    cores = feed.decode_cores * found.step_seconds / (found.step_seconds - waits)
    needed = quantity.count(math.ceil(cores))
    limit = (
        f"Decoding: {needed} cores would keep up with training, there are {there}, and each step"
        f" waits {quantity.seconds(waits)}."
        if waits > 0
        else f"Nothing: of {there} cores {needed} decode."
    )
    return SystemPart(
        part="data",
        headline=f"{quantity.count(found.images_per_second)} images/s",
        figures={
            "decode_cores": cores,
            "storage_bytes_per_second": feed.storage_bytes_per_second,
            "waiting_seconds": waits,
        },
        limit=limit,
        cost_usd=None,
        command=_training_command(question),
        measured=_gains("data"),
        predicted=[],
    )


def _training(question: SystemQuestion, found: VisionTrainingEstimate) -> SystemPart:
    assert found.run is not None
    return SystemPart(
        part="training",
        headline=quantity.seconds(found.run.run_seconds),
        figures={
            "run_seconds": found.run.run_seconds,
            "step_seconds": found.step_seconds,
            "scaling_fraction": found.scaling_efficiency,
            "mfu_fraction": found.mfu,
        },
        limit=f"Bound by {LIMITS[found.bound]}.",
        cost_usd=found.run.usd,
        command=_training_command(question),
        measured=_gains("training"),
        predicted=[],
    )


def _compression(network: VisionNetwork) -> SystemPart:
    sizes = {name: network.parameters * width for name, width in WIDTHS.items()}
    names = {name: f"{name.replace(' ', '_')}_bytes" for name in WIDTHS}
    return SystemPart(
        part="compression",
        headline=f"{quantity.memory(sizes['fp32'])} → {quantity.memory(sizes['int8'])}",
        figures={names[name]: size for name, size in sizes.items()},
        limit="Quality: what fewer bits cost must be measured on your images.",
        cost_usd=None,
        command=_words(
            "compress", "net.py:build", "--scheme", "w8a8-int8", "--calibration", "images/",
            "--images", "held/", "--out", "int8",
        ),
        measured=_gains("compression"),
        predicted=[
            PredictedChange(change=f"weights in {name}", ratio=sizes["fp32"] / size)
            for name, size in sizes.items()
            if name != "fp32"
        ],
    )  # fmt: skip


def _serving(question: SystemQuestion, found: VisionInferenceEstimate, devices: int) -> SystemPart:
    rate = found.images_per_second * devices
    price = catalogue.typical_usd_per_device_hour(found.device)
    tariff = money.Tariff(usd_per_device_hour=price, watts=None)
    return SystemPart(
        part="serving",
        headline=f"{quantity.count(rate)} images/s",
        figures={
            "latency_seconds": found.latency_seconds,
            "mfu_fraction": found.mfu,
            "million_images_seconds": MILLION / rate,
        },
        limit=f"Bound by {LIMITS[found.bound]}.",
        cost_usd=money.bill(devices, MILLION / rate, tariff).usd,
        command=_words(
            "predict", "inference", "--model", question.model, "--device", found.device,
            "--batch", str(SERVED_BATCH),
        ),
        measured=_gains("serving"),
        predicted=_predicted(found),
    )  # fmt: skip


def _vehicle(question: SystemQuestion, found: VisionInferenceEstimate) -> SystemPart:
    assert found.deadline is not None
    period = quantity.seconds(question.period_seconds)
    met = {
        "yes": f"Met: {quantity.seconds(found.deadline.margin_seconds)} of {period} are left",
        "no": f"Missed: {quantity.seconds(-found.deadline.margin_seconds)} more than {period}",
        "uncertain": f"Uncertain: {period} lie inside the forecast's interval",
    }[found.deadline.met]
    return SystemPart(
        part="vehicle",
        headline=f"{quantity.seconds(found.latency_seconds)} a frame",
        figures={
            "latency_seconds": found.latency_seconds,
            "margin_seconds": found.deadline.margin_seconds,
            "mfu_fraction": found.mfu,
        },
        limit=f"{met}. Bound by {LIMITS[found.bound]}.",
        cost_usd=None,
        command=_words(
            "predict", "inference", "--model", question.model, "--device", found.device,
            "--precision", found.precision, "--software", found.software,
            "--period", f"{question.period_seconds:g}s",
        ),
        measured=_gains("vehicle"),
        predicted=_predicted(found),
    )  # fmt: skip


def _predicted(found: VisionInferenceEstimate) -> list[PredictedChange]:
    return [PredictedChange(change=one.change, ratio=one.times_faster) for one in found.changes]


def _tightest(
    training: VisionTrainingEstimate, vehicle: VisionInferenceEstimate
) -> tuple[PartName, str]:
    """A deadline that is missed before all else, then input that waits, then the longest part."""
    assert vehicle.deadline is not None
    if vehicle.deadline.met == "no":
        return (
            "vehicle",
            "its frame misses the deadline, and nothing before it can make up for that",
        )
    share = training.breakdown["input"] / training.step_seconds
    if share > 0.05:
        return "data", f"training waits {quantity.percent(share)} of its time for images"
    if vehicle.deadline.met == "uncertain":
        return "vehicle", "whether it meets its deadline is within the forecast's error"
    return "training", f"it is fed in time, and bound by {LIMITS[training.bound].partition(':')[0]}"


def _training_command(question: SystemQuestion) -> str:
    return _words(
        "predict", "training", "--model", question.model, "--cluster", question.cluster,
        "--batch", str(question.batch), "--images", f"{question.images:.0f}",
        "--epochs", f"{question.epochs:g}",
        "--cores-per-device", f"{question.cores_per_device:g}",
    )  # fmt: skip


def _words(*words: str) -> str:
    return shlex.join(["ridgeline", *words])


@functools.cache
def _techniques() -> dict[str, list[str]]:
    return read_toml(Path(__file__).with_name("system_parts.toml"), dict[str, list[str]])


def _gains(part: PartName) -> list[PartGain]:
    """What the part's techniques gained where they were kept, the largest first."""
    gains = measured_gains()
    found = []
    for technique in _techniques()[part]:
        rows = [] if gains is None else gains.gain
        kept = [row.multiplier for row in rows if row.technique == technique and row.kept]
        if kept:
            found.append(_gain(technique, kept))
    return sorted(found, key=lambda one: -one.median_ratio)


def _gain(technique: str, kept: Sequence[float]) -> PartGain:
    return PartGain(
        technique=technique,
        median_ratio=median(kept),
        least_ratio=min(kept),
        most_ratio=max(kept),
        scripts=len(kept),
    )
