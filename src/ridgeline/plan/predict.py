"""`ridgeline predict training`: one layout of one model on one cluster, as an estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ridgeline.cost.coefficients import Coefficients
from ridgeline.cost.setting import ASSUMED_UNITS, peak_of
from ridgeline.cost.training import estimate_one
from ridgeline.cost.workload import Stack, Workload
from ridgeline.errors import InputError
from ridgeline.hardware.cluster import Cluster, parse_cluster
from ridgeline.models.load import load_model
from ridgeline.models.sequence import sequence_of
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.calibration import coefficients_for, fitted_rows, stack
from ridgeline.plan.measured import calibrate, read_measured
from ridgeline.records.estimate import CoefficientChange, Estimate
from ridgeline.records.layout import Layout

_UNITS = "how many compute units {} has is not on record: {} are assumed"
_IMAGES = (
    "no run with images was fitted; published ViT steps on an RTX 3090 were 18% shorter than"
    " predicted (median of 33), and a data pipeline is not counted"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One run to predict."""

    model: ModelSpec
    cluster: Cluster
    workload: Workload
    layout: Layout


def predict_training(
    model: str,
    cluster: str | Cluster,
    *,
    seq: int | None = None,
    layout: Layout,
    software: str = "torch",
    measured: Sequence[Path] = (),
) -> Estimate:
    """Predict one training step.

    Args:
        model: A preset, a path to a `config.json`, or sizes as `layers=…,hidden=…`.
        cluster: As `64xH100`, or a `Cluster`.
        seq: Tokens in one sequence; a model of images has its own.
        layout: How the run is laid out; it must fill the cluster.
        software: A class of `plan/stacks.toml`.
        measured: Files with measured steps that update the coefficients.

    >>> layout = Layout(dp=8, fsdp=8, zero=3, global_batch=16, recompute="full")
    >>> predict_training("Llama-3-8B", "8xH100", seq=8192, layout=layout).memory.verdict
    'fits'
    """
    spec = load_model(model)
    question = Question(
        model=spec,
        cluster=parse_cluster(cluster) if isinstance(cluster, str) else cluster,
        workload=Workload(seq=sequence_of(spec, seq), stack=stack(software)),
        layout=layout,
    )
    return answer(question, measured)


def answer(question: Question, measured: Sequence[Path] = ()) -> Estimate:
    """The estimate, with what was assumed and what the measured steps changed."""
    check(question)
    coefficients = coefficients_for(question.cluster.device)
    changes: list[CoefficientChange] = []
    if measured:
        steps = [
            step
            for path in measured
            for step in read_measured(path, question.model, question.workload, question.layout)
        ]
        coefficients, changes = calibrate(steps, question.cluster, coefficients)
    estimate = estimate_one(
        question.model, question.cluster, question.workload, question.layout, coefficients
    )
    sentences = [*estimate.assumed, *_assumed(question, coefficients, bool(measured))]
    return msgspec.structs.replace(estimate, assumed=sentences, calibrated=changes)


def check(question: Question) -> None:
    """Whether this layout can run at all; an `InputError` says what to change."""
    model, layout, cluster = question.model, question.layout, question.cluster
    if layout.num_devices != cluster.num_devices:
        raise InputError(
            f"the layout fills dp {layout.dp} x tp {layout.tp} x pp {layout.pp} x cp {layout.cp}"
            f" = {layout.num_devices} devices, the cluster has {cluster.num_devices}; change one"
        )
    if model.heads % layout.tp:
        raise InputError(
            f"--tp {layout.tp} does not divide the {model.heads} heads of {model.name}; use a"
            " divisor"
        )
    layers = model.layers + model.decoder_layers
    if layout.pp * layout.vpp > layers:
        raise InputError(
            f"--pp {layout.pp} x --vpp {layout.vpp} is more than the {layers} layers of"
            f" {model.name}; use fewer stages"
        )
    if layout.ep > 1:
        _check_experts(model, layout)
    if question.workload.seq % layout.cp:
        raise InputError(f"--cp {layout.cp} does not divide --seq {question.workload.seq}")
    peaks = cluster.device.peaks
    if math.isnan(peak_of(cluster.device, layout.precision)):
        raise InputError(
            f"--precision {layout.precision}: {cluster.device.name} has no"
            f" {layout.precision} arithmetic; it has"
            f" {', '.join(peaks)}"
        )


def _check_experts(model: ModelSpec, layout: Layout) -> None:
    if model.experts is None:
        raise InputError(f"--ep {layout.ep}: {model.name} has no experts; leave it out")
    if model.experts.num_experts % layout.ep:
        raise InputError(
            f"--ep {layout.ep} does not divide the {model.experts.num_experts} experts of"
            f" {model.name}; use a divisor"
        )
    if (layout.dp * layout.cp * layout.tp) % (layout.ep * layout.etp):
        raise InputError(
            f"--ep {layout.ep} x etp {layout.etp} does not divide the"
            f" {layout.dp * layout.cp * layout.tp} ranks of a pipeline stage"
        )


def _assumed(question: Question, coefficients: Coefficients, measured: bool) -> list[str]:
    device, precision = question.cluster.device, question.layout.precision
    share = coefficients.gemm[precision]
    rows = fitted_rows().get(device.architecture, {}).get(precision, 0)
    if measured:
        origin = "updated by the measured steps"
    elif rows:
        origin = f"fitted to {rows} published runs on {device.architecture}"
    else:
        origin = f"assumed: no published run with {precision} on {device.architecture} was fitted"
    stack_used: Stack = question.workload.stack
    images = [_IMAGES] if question.model.kind == "vision" else []
    units = [] if device.chip.num_units else [_UNITS.format(device.name, ASSUMED_UNITS)]
    return [
        *images,
        *units,
        f"matrix products reach {share:.0%} of the {precision} peak ({origin})",
        f"software of the class {stack_used.name}; --software names another",
    ]
