"""Training time against the number of devices, of any model (`ridgeline predict scaling`).

A language model keeps its global batch and its replica (tp · pp devices): more devices are more
replicas. A network for images keeps each device's batch, as published runs do, so that its global
batch grows. The step is judged by the calibrated models of `cost/training/` and `cost/vision/`;
the first number of devices is what all others are held against.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ridgeline.cost import money
from ridgeline.cost.training.estimate import VERDICTS, Estimates, estimate_training
from ridgeline.cost.training.layouts import stack_layouts
from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.hardware.cluster import Cluster
from ridgeline.models.load import load_model
from ridgeline.plan.training.coefficients import coefficients_for
from ridgeline.plan.training.filled_layout import filled_layout
from ridgeline.plan.training.question import TrainingQuestion, check
from ridgeline.plan.training.scaling_curves import EXPOSED
from ridgeline.plan.training.trained import workload_of
from ridgeline.plan.vision.question import vision_name
from ridgeline.plan.vision.training import predict_vision_training
from ridgeline.records.input_file import read_toml
from ridgeline.records.layout import Layout, Recompute
from ridgeline.records.scaling_forecast import ForecastPoint, PublishedRun, ScalingForecast
from ridgeline.records.vision_estimate import VisionTrainingEstimate

MOST_POINTS = 40
MOST_DEVICES = 131_072
IMAGENET_IMAGES = 1_281_167.0
USUAL_TOKENS = 300e9
USUAL_EPOCHS = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRun:
    """A run of a language model, but for its number of devices."""

    tokens: float = USUAL_TOKENS
    global_batch: int = 1024
    """Sequences in one step."""
    micro_batch: int = 1
    seq: int | None = None
    tp: int = 1
    pp: int = 1
    zero: int | None = None
    recompute: Recompute = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRun:
    """A run of a network for images, but for its number of devices."""

    images: float = IMAGENET_IMAGES
    epochs: float = USUAL_EPOCHS
    batch: int = 256
    """Images of one device in one step."""


def predict_scaling(
    model: str,
    cluster: Cluster,
    counts: Sequence[int],
    run: TokenRun | ImageRun,
    *,
    overlap: float | None = None,
) -> ScalingForecast:
    """The length of a whole training run on each number of devices.

    Args:
        model: A language model or a network for images.
        cluster: Its device and network; its number of devices does not matter.
        counts: Numbers of devices; what is not a multiple of a replica is refused.
        run: What is trained on, and how.
        overlap: Share of the backward pass under which gradients may travel; by default that of
            published runs.

    >>> from ridgeline.hardware.cluster import parse_cluster
    >>> found = predict_scaling("resnet50", parse_cluster("8xV100"), [8, 64], ImageRun())
    >>> [point.num_devices for point in found.points], found.points[0].efficiency
    ([8, 64], 1.0)

    Raises:
        InputError: The question makes no sense.
    """
    ordered = sorted(set(counts))
    if not ordered or ordered[0] < 1 or ordered[-1] > MOST_DEVICES or len(ordered) > MOST_POINTS:
        raise InputError(f"--devices: give one to {MOST_POINTS} numbers from 1 to {MOST_DEVICES:,}")
    if overlap is not None and not 0.0 <= overlap <= 1.0:
        raise InputError(f"--overlap {overlap:g}: it is a share, from 0 to 1")
    images = vision_name(model) is not None
    if images != isinstance(run, ImageRun):
        raise InputError(
            f"{model} takes images: leave the options of language models out"
            if images
            else f"{model} takes tokens: leave the options of networks for images out"
        )
    shared = float(coefficients_for(cluster.device).data_overlap) if overlap is None else overlap
    if isinstance(run, ImageRun):
        return _of_images(model, cluster, ordered, run, shared)
    return _of_tokens(model, cluster, ordered, run, shared)


# -- language models -------------------------------------------------------------------------------


def _of_tokens(
    model: str, cluster: Cluster, counts: Sequence[int], run: TokenRun, overlap: float
) -> ScalingForecast:
    spec = load_model(model)
    workload = workload_of(spec, seq=run.seq, software="torch")
    layouts = [_layout(replace(cluster, num_devices=count), run) for count in counts]
    for count, layout in zip(counts, layouts, strict=True):
        where = replace(cluster, num_devices=count)
        check(TrainingQuestion(model=spec, cluster=where, workload=workload, layout=layout))
    rates = replace(coefficients_for(cluster.device), data_overlap=overlap)
    found = estimate_training(spec, cluster, workload, stack_layouts(layouts), rates)
    steps = math.ceil(run.tokens / (run.global_batch * workload.seq))
    steps_seconds = [float(one) for one in found.step_seconds]
    first = steps_seconds[0] * counts[0]
    points = [
        ForecastPoint(
            num_devices=count,
            global_batch=run.global_batch,
            step_seconds=steps_seconds[place],
            run_seconds=steps * steps_seconds[place],
            ideal_seconds=steps * first / count,
            efficiency=first / (steps_seconds[place] * count),
            exposed_seconds=sum(float(found.terms[term][place]) for term in EXPOSED),
            verdict=VERDICTS[int(found.verdict[place])],
            usd=_usd(cluster, count, steps * steps_seconds[place]),
            bottleneck=_lost(found, place, counts),
        )
        for place, count in enumerate(counts)
    ]
    return _forecast(model, cluster, points, "tokens", run.tokens, overlap)


def _layout(cluster: Cluster, run: TokenRun) -> Layout:
    return filled_layout(
        cluster,
        tp=run.tp,
        pp=run.pp,
        zero=run.zero,
        micro_batch=run.micro_batch,
        global_batch=run.global_batch,
        recompute=run.recompute,
    )


def _lost(found: Estimates, place: int, counts: Sequence[int]) -> str:
    """The term whose device-seconds have grown most since the first point."""
    grown = {
        name: float(values[place]) * counts[place] - float(values[0]) * counts[0]
        for name, values in found.terms.items()
    }
    worst = max(grown, key=lambda name: grown[name])
    return worst if place and grown[worst] > 0 else "none"


# -- networks for images ---------------------------------------------------------------------------


def _of_images(
    model: str, cluster: Cluster, counts: Sequence[int], run: ImageRun, overlap: float
) -> ScalingForecast:
    amount = run.images * run.epochs
    found = [
        predict_vision_training(
            model,
            replace(cluster, num_devices=count),
            batch=run.batch,
            images=run.images,
            epochs=run.epochs,
            overlap=overlap,
        )
        for count in counts
    ]
    first = _run_seconds(found[0], amount) * counts[0]
    points = []
    for count, one in zip(counts, found, strict=True):
        seconds = _run_seconds(one, amount)
        points.append(
            ForecastPoint(
                num_devices=count,
                global_batch=one.global_batch,
                step_seconds=one.step_seconds,
                run_seconds=seconds,
                ideal_seconds=first / count,
                efficiency=first / (seconds * count),
                exposed_seconds=one.breakdown["communication"],
                verdict=one.memory.verdict,
                usd=_usd(cluster, count, seconds),
                bottleneck="communication" if count > counts[0] else "none",
            )
        )
    return _forecast(model, cluster, points, "images", amount, overlap)


def _run_seconds(one: VisionTrainingEstimate, images: float) -> float:
    """Without the rounding of the last step, which would look like lost efficiency."""
    return images / one.images_per_second


# -- both ------------------------------------------------------------------------------------------


def _usd(cluster: Cluster, count: int, seconds: float) -> float | None:
    price = catalogue.typical_usd_per_device_hour(cluster.device.name)
    return money.bill(count, seconds, money.Tariff(usd_per_device_hour=price, watts=None)).usd


def _forecast(
    model: str,
    cluster: Cluster,
    points: list[ForecastPoint],
    unit: str,
    amount: float,
    overlap: float,
) -> ScalingForecast:
    return ScalingForecast(
        model=model,
        device=cluster.device.name,
        unit="images" if unit == "images" else "tokens",
        amount=amount,
        overlap=overlap,
        network_bytes_per_second=cluster.network_bytes_per_second / cluster.oversubscription,
        points=points,
        published=[_scaled(run, amount) for run in published_runs() if run.model == model],
        assumed=list(cluster.assumed),
    )


class WholeRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of `published_whole_runs.toml`."""

    model: str
    device: str
    num_devices: int
    hours: float
    tokens: float = 0.0
    images: float = 0.0
    epochs: float = 0.0
    note: str
    source: str


class _Runs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run: list[WholeRun]


@functools.cache
def published_runs() -> tuple[WholeRun, ...]:
    """Every whole run that is on record."""
    return tuple(read_toml(Path(__file__).with_name("published_whole_runs.toml"), _Runs).run)


def _scaled(run: WholeRun, amount: float) -> PublishedRun:
    own = run.tokens or run.images * run.epochs
    changed = abs(own / amount - 1.0) > 0.001
    note = f"{run.note}; in proportion to the amount" if changed else run.note
    return PublishedRun(
        model=run.model,
        device=run.device,
        num_devices=run.num_devices,
        run_seconds=run.hours * 3600.0 * amount / own,
        note=note,
        source=run.source,
    )
