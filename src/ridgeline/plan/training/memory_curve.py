"""Memory over a training step of one layout (`ridgeline predict memory`)."""

from __future__ import annotations

from typing import get_args

import msgspec

from ridgeline.cost.training.coefficients import Coefficients
from ridgeline.cost.training.estimate import TIGHT
from ridgeline.cost.training.layouts import stack_layouts
from ridgeline.cost.training.memory_curve import Checkpoint, Moment, memory_moments
from ridgeline.cost.training.setting import Setting, setting_of
from ridgeline.errors import InputError
from ridgeline.hardware.cluster import Cluster
from ridgeline.models.load import load_model
from ridgeline.plan.training.coefficients import coefficients_for
from ridgeline.plan.training.question import TrainingQuestion, check
from ridgeline.plan.training.trained import WHOLE, Trained, trained_sentences, workload_of
from ridgeline.records.estimate import Fit
from ridgeline.records.layout import Layout, Recompute
from ridgeline.records.memory_curve import CheckpointPeak, MemoryCurve, MemoryMoment

_REDONE: dict[Checkpoint, Recompute] = {
    "none": "none",
    "selective": "selective",
    "full": "full",
    "sqrt": "full",
}
_DRAWN_STAGE = "of a pipeline the fuller of the first and the last stage is drawn"


def predict_memory(
    model: str,
    cluster: Cluster,
    *,
    layout: Layout,
    checkpoint: Checkpoint = "none",
    seq: int | None = None,
    software: str = "torch",
    trained: Trained = WHOLE,
) -> MemoryCurve:
    """Memory of one device over a training step, by category.

    Args:
        model: A preset, a path to a `config.json`, or sizes as `layers=…,hidden=…`.
        cluster: Where it runs.
        layout: How the run is laid out; its recomputation follows `checkpoint`.
        checkpoint: Which activations are kept: `none` of them is redone, or `selective`, `full`,
            `sqrt`.
        seq: Tokens in one sequence.
        software: A class of `plan/training/stacks.toml`.
        trained: The weights or adapters that are trained, and by which optimizer.

    >>> from ridgeline.hardware.cluster import parse_cluster
    >>> layout = Layout(dp=8, fsdp=8, zero=3, global_batch=16)
    >>> found = predict_memory("Llama-3-8B", parse_cluster("8xH100"), layout=layout, seq=8192)
    >>> found.verdict, found.largest_term, found.peak.phase
    ('fits', 'activations', 'backward')

    Raises:
        InputError: The question makes no sense.
    """
    spec = load_model(model)
    workload = workload_of(spec, seq=seq, software=software, trained=trained)
    question = TrainingQuestion(
        model=spec, cluster=cluster, workload=workload, layout=layout, trained=trained
    )
    check(question)
    if checkpoint not in _REDONE:
        raise InputError(f"checkpoint {checkpoint!r}: use one of {', '.join(_REDONE)}")
    coefficients = coefficients_for(cluster.device)
    capacity = float(cluster.device.memory.usable_bytes)
    curves = {
        one: memory_moments(_setting(question, one, coefficients), one)
        for one in get_args(Checkpoint)
    }
    moments = [_recorded(one) for one in curves[checkpoint]]
    peak = max(moments, key=lambda one: one.total_bytes)
    return MemoryCurve(
        model=spec.name,
        cluster=f"{cluster.num_devices}x{cluster.device.name}",
        layout=_with(layout, checkpoint),
        checkpoint=checkpoint,
        moments=moments,
        peak=peak,
        largest_term=max(peak.terms, key=lambda name: peak.terms[name]),
        capacity_bytes=capacity,
        verdict=_verdict(peak.total_bytes, capacity),
        others=[_other(name, curve, curves["none"], capacity) for name, curve in curves.items()],
        assumed=[
            *cluster.assumed,
            *([_DRAWN_STAGE] if layout.pp > 1 else []),
            *trained_sentences(trained, spec),
        ],
    )


def _with(layout: Layout, checkpoint: Checkpoint) -> Layout:
    return msgspec.structs.replace(layout, recompute=_REDONE[checkpoint])


def _setting(
    question: TrainingQuestion, checkpoint: Checkpoint, coefficients: Coefficients
) -> Setting:
    layouts = stack_layouts([_with(question.layout, checkpoint)])
    return setting_of(question.model, question.cluster, question.workload, layouts, coefficients)


def _recorded(moment: Moment) -> MemoryMoment:
    terms = {name: size for name, size in moment.terms.items() if size}
    return MemoryMoment(
        phase=moment.phase, seconds=moment.seconds, terms=terms, total_bytes=sum(terms.values())
    )


def _other(
    name: str, curve: list[Moment], all_kept: list[Moment], capacity: float
) -> CheckpointPeak:
    peak = max(sum(moment.terms.values()) for moment in curve)
    return CheckpointPeak(
        checkpoint=name,
        peak_bytes=peak,
        verdict=_verdict(peak, capacity),
        seconds=curve[-1].seconds,
        activation_bytes=_activations(curve),
        activations_freed=_activations(all_kept) / _activations(curve),
        pass_ratio=_pass_seconds(curve) / _pass_seconds(all_kept),
    )


def _activations(curve: list[Moment]) -> float:
    return max(
        moment.terms.get("activations", 0.0) + moment.terms.get("recompute", 0.0)
        for moment in curve
    )


def _pass_seconds(curve: list[Moment]) -> float:
    return max(moment.seconds for moment in curve if moment.phase == "backward")


def _verdict(peak_bytes: float, capacity_bytes: float) -> Fit:
    if peak_bytes > capacity_bytes:
        return "oom"
    return "tight" if peak_bytes > TIGHT * capacity_bytes else "fits"
