"""The best way to train a network for images, out of clusters, batches and settings.

Every cluster is tried with every batch that fits (powers of two, and the share of a fixed global
batch), each precision, layout and with and without `torch.compile`. The global batch is bounded:
ResNet-50 keeps its accuracy up to 8,192 images with a learning rate that grows with the batch and
is warmed up (Goyal et al., "Accurate, Large Minibatch SGD", 1706.02677, section 5.1), and nothing
here says what a larger one does to yours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ridgeline import quantity
from ridgeline.cost.training.estimate import TIGHT
from ridgeline.cost.vision.memory import OPTIMIZER_BYTES
from ridgeline.errors import InputError
from ridgeline.hardware.cluster import Cluster, parse_cluster
from ridgeline.models.vision.network import VisionNetwork
from ridgeline.plan.vision.question import (
    MEMORY_FORMATS,
    check_batch,
    check_memory_format,
    network_of,
    training_precision,
)
from ridgeline.plan.vision.training import (
    VisionTrainingTask,
    estimate_training,
    memory_of,
)
from ridgeline.records.plan import KnobValue, Objective
from ridgeline.records.vision_estimate import VisionTrainingEstimate
from ridgeline.records.vision_plan import VisionCandidate, VisionTrainingPlan

MOST_GLOBAL_BATCH = 8192
SMALLEST_BATCH = 16
KNOBS = ("batch", "precision", "memory_format", "software")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSearch:
    """What is searched for, over all clusters."""

    network: VisionNetwork
    images: float
    epochs: float
    precisions: tuple[str, ...]
    """The precisions to try; none asks for the 16 bits of each device."""
    global_batch: int | None
    most_global_batch: int
    optimizer: str
    cores_per_device: float | None


@dataclass(slots=True, kw_only=True)
class Judged:
    """What a search has seen."""

    found: list[VisionTrainingEstimate] = field(default_factory=list)
    without_ground: dict[str, None] = field(default_factory=dict)
    """Sentences, in the order in which they were met."""
    too_large: dict[str, None] = field(default_factory=dict)
    searched: int = 0


def plan_vision_training(
    model: str | VisionNetwork,
    clusters: Sequence[str | Cluster],
    *,
    images: float,
    epochs: float = 1.0,
    image_size: int | tuple[int, int] | None = None,
    precisions: Sequence[str] = (),
    global_batch: int | None = None,
    most_global_batch: int = MOST_GLOBAL_BATCH,
    optimizer: str = "sgd",
    cores_per_device: float | None = None,
    objective: Objective = "time",
) -> VisionTrainingPlan:
    """The best way to train a network for images, and the best of every cluster.

    Args:
        model: A preset's name, or a network as `models/vision` has it.
        clusters: Candidates, as `8xA100`, or as `Cluster`.
        images: Images of one epoch.
        epochs: Passes over them.
        image_size: Height and width, or one number for both; by default the model's own.
        precisions: To allow; by default the 16 bits of each device.
        global_batch: Images in one step, over all devices; by default any up to the most.
        most_global_batch: What the accuracy allows.
        optimizer: `sgd` or `adamw`.
        cores_per_device: Cores that decode images; by default enough.
        objective: `time` or `cost` of the whole run.

    Raises:
        InputError: The question makes no sense, nothing fits, or the fit has no ground.

    >>> plan = plan_vision_training("resnet50", ["8xV100", "8xA100"], images=1.28e6, epochs=90)
    >>> plan.best.cluster, len(plan.clusters)
    ('8xA100-SXM-80GB', 2)
    """
    search = _search(
        VisionSearch(
            network=network_of(model, image_size),
            images=images,
            epochs=epochs,
            precisions=tuple(precisions),
            global_batch=global_batch,
            most_global_batch=most_global_batch,
            optimizer=optimizer,
            cores_per_device=cores_per_device,
        ),
        objective,
    )
    places = [parse_cluster(one) if isinstance(one, str) else one for one in clusters]
    start = time.perf_counter()
    judged = Judged()
    for place in places:
        _judge(search, place, judged)
    return _plan(search, objective, judged, time.perf_counter() - start)


def _search(search: VisionSearch, objective: Objective) -> VisionSearch:
    if objective not in ("time", "cost"):
        raise InputError(f"--objective {objective}: for images use time or cost")
    if search.optimizer not in OPTIMIZER_BYTES:
        raise InputError(f"--optimizer {search.optimizer}: use {' or '.join(OPTIMIZER_BYTES)}")
    check_batch(search.most_global_batch, "--most-global-batch")
    if search.global_batch is not None:
        check_batch(search.global_batch, "--global-batch")
    for option, value in (("--images", search.images), ("--epochs", search.epochs)):
        if not 0 < value < 1e15:
            raise InputError(f"{option} {value:g}: give a number above 0")
    return search


def _judge(search: VisionSearch, place: Cluster, judged: Judged) -> None:
    """Estimate everything that is tried on one cluster."""
    for task in _tasks(search, place):
        judged.searched += 1
        try:
            judged.found.append(estimate_training(task))
        except InputError as error:
            judged.without_ground[str(error)] = None
    if not any(one.cluster.endswith(place.device.name) for one in judged.found):
        judged.too_large[f"{place.num_devices}x{place.device.name}"] = None


def _tasks(search: VisionSearch, place: Cluster) -> Iterator[VisionTrainingTask]:
    """Everything on one cluster that fits in memory."""
    precisions = search.precisions or (place.device.training_dtype,)
    capacity = TIGHT * place.device.memory.usable_bytes
    cores = search.cores_per_device
    for precision in precisions:
        for compiled in (False, True):
            task = VisionTrainingTask(
                network=search.network,
                cluster=place,
                batch=1,
                micro_batch=1,
                precision=training_precision(place.device, precision),
                memory_format="contiguous",
                compiled=compiled,
                optimizer="adamw" if search.optimizer == "adamw" else "sgd",
                images=search.images,
                epochs=search.epochs,
                cores=None if cores is None else cores * place.num_devices,
            )
            largest = memory_of(task).largest_batch(capacity)
            for batch, micro in _batches(search, place.num_devices, largest):
                for memory_format in map(check_memory_format, MEMORY_FORMATS):
                    yield replace(task, batch=batch, micro_batch=micro, memory_format=memory_format)


def _batches(search: VisionSearch, devices: int, largest: int) -> list[tuple[int, int]]:
    """Images of one device in a step, and in a pass of it."""
    if search.global_batch is not None:
        share, rest = divmod(search.global_batch, devices)
        passes = next((n for n in range(1, share + 1) if share % n == 0 and share // n <= largest),
                      0)  # fmt: skip
        return [] if rest or not passes else [(share, share // passes)]
    most = min(largest, search.most_global_batch // devices)
    sizes = {2**power for power in range(20) if SMALLEST_BATCH <= 2**power <= most}
    if 0 < most < SMALLEST_BATCH:
        sizes = {most}
    return [(size, size) for size in sorted(sizes)]


def _plan(
    search: VisionSearch, objective: Objective, judged: Judged, seconds: float
) -> VisionTrainingPlan:
    if not judged.found:
        raise InputError(_nothing(search, judged))
    ranked = sorted(judged.found, key=lambda one: _rank(one, objective))
    best = ranked[0]
    first: dict[str, VisionTrainingEstimate] = {}
    for one in ranked:
        first.setdefault(one.cluster, one)
    return VisionTrainingPlan(
        model=search.network.name,
        image_size=search.network.image_size,
        images=search.images,
        epochs=search.epochs,
        objective=objective,
        most_global_batch=search.global_batch or search.most_global_batch,
        best=best,
        clusters=[_candidate(one, best) for one in first.values()],
        knobs=_knobs([one for one in ranked if one.cluster == best.cluster], best, objective),
        searched=judged.searched,
        feasible=len(judged.found),
        without_ground=list(judged.without_ground),
        seconds=seconds,
        assumed=best.assumed,
    )


def _rank(one: VisionTrainingEstimate, objective: Objective) -> tuple[float, float]:
    """What is kept low: the objective, then time; what has no price comes last by cost."""
    assert one.run is not None
    if objective == "cost":
        return (one.run.usd if one.run.usd is not None else float("inf"), one.run.run_seconds)
    return (one.run.run_seconds, one.run.device_hours)


def _candidate(one: VisionTrainingEstimate, best: VisionTrainingEstimate) -> VisionCandidate:
    assert one.run is not None
    assert best.run is not None
    priced = one.run.usd is not None and best.run.usd is not None
    return VisionCandidate(
        estimate=one,
        times_slower=one.run.run_seconds / best.run.run_seconds,
        times_dearer=one.run.usd / best.run.usd if priced else None,  # type: ignore[operator]
        why=_why(one),
    )


def _why(one: VisionTrainingEstimate) -> str:
    """What bounds it, in a sentence with numbers."""
    terms = sorted(one.breakdown.items(), key=lambda item: -item[1])
    shares = [
        f"{name} {quantity.percent(size / one.step_seconds)}"
        for name, size in terms[:2]
        if size > 0
    ]
    return f"bound by {one.bound}: {', '.join(shares)} of the step"


def _knobs(
    ranked: Sequence[VisionTrainingEstimate], best: VisionTrainingEstimate, objective: Objective
) -> list[KnobValue]:
    values: list[KnobValue] = []
    least = _rank(best, objective)[0]
    for knob in KNOBS:
        held: dict[object, float] = {}
        for one in ranked:
            held.setdefault(getattr(one, knob), _rank(one, objective)[0])
        if len(held) < 2:
            continue
        for value in sorted(held, key=lambda word: (isinstance(word, str), word)):
            slower = held[value] / least if least not in (0.0, float("inf")) else 1.0
            values.append(KnobValue(knob=knob, value=str(value), times_slower=slower))
    return values


def _nothing(search: VisionSearch, judged: Judged) -> str:
    if judged.without_ground:
        return next(iter(judged.without_ground))
    if search.global_batch is not None:
        return (
            f"--global-batch {search.global_batch}: no cluster of the candidates can share it so"
            " that a pass of one device fits; give another, or leave it out"
        )
    return (
        f"{search.network.name} fits on none of {', '.join(judged.too_large)} within a global"
        f" batch of {search.most_global_batch:,}; take devices with more memory, or fewer of them"
    )
