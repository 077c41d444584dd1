"""The estimate of one layout of one model on one cluster (`ridgeline predict training`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from ridgeline.cost.training.coefficients import Coefficients
from ridgeline.cost.training.estimate import estimate_one
from ridgeline.cost.training.setting import ASSUMED_UNITS
from ridgeline.cost.training.workload import Stack
from ridgeline.errors import InputError
from ridgeline.hardware.cluster import TYPICAL_DISK_BYTES_PER_SECOND, Cluster, parse_cluster
from ridgeline.models.load import load_model
from ridgeline.plan.training.coefficients import coefficients_for, fitted_rows
from ridgeline.plan.training.measured import MeasuredStep, calibrate, read_measured
from ridgeline.plan.training.question import TrainingQuestion, check
from ridgeline.plan.training.stacks import require_precision
from ridgeline.plan.training.trained import WHOLE, Trained, trained_sentences, workload_of
from ridgeline.records.estimate import CoefficientChange, Estimate
from ridgeline.records.layout import Layout

_UNITS = "how many compute units {} has is not on record: {} are assumed"
_DISK = (
    f"each device reads and writes {TYPICAL_DISK_BYTES_PER_SECOND / 1e9:g} GB/s of its node's"
    " disks, as in a DGX-2 (arXiv 2104.07857, figure 2b); give --disk or --disk-bandwidth"
)
_IMAGES = (
    "no run with images was fitted; published ViT steps on an RTX 3090 were 19% shorter than"
    " predicted (median of 33), and a data pipeline is not counted"
)


def predict_training(
    model: str,
    cluster: str | Cluster,
    *,
    seq: int | None = None,
    layout: Layout,
    software: str = "torch",
    recompute_every: int = 1,
    trained: Trained = WHOLE,
    measured: Sequence[Path] = (),
) -> Estimate:
    """Predict one training step.

    Args:
        model: A preset, a path to a `config.json`, or sizes as `layers=…,hidden=…`.
        cluster: As `64xH100`, or a `Cluster`.
        seq: Tokens in one sequence; a model of images has its own.
        layout: How the run is laid out; it must fill the cluster.
        software: A class of `plan/training/stacks.toml`.
        recompute_every: Where the layout recomputes fully, only each so-manieth layer does.
        trained: The weights or adapters that are trained, and by which optimizer.
        measured: Files with measured steps that update the coefficients.

    >>> layout = Layout(dp=8, fsdp=8, zero=3, global_batch=16, recompute="full")
    >>> predict_training("Llama-3-8B", "8xH100", seq=8192, layout=layout).memory.verdict
    'fits'
    """
    if recompute_every < 1:
        raise InputError(f"recompute_every is {recompute_every}; it must be 1 or more")
    if recompute_every > 1 and layout.recompute != "full":
        raise InputError(
            f"recompute_every {recompute_every} says which layers recompute, and recompute is"
            f" {layout.recompute}; set it to full, or leave recompute_every out"
        )
    require_precision(software, layout.precision)
    spec = load_model(model)
    work = workload_of(
        spec,
        seq=seq,
        software=software,
        trained=trained,
        recompute_share=1.0 / recompute_every,
    )
    question = TrainingQuestion(
        model=spec,
        cluster=parse_cluster(cluster) if isinstance(cluster, str) else cluster,
        workload=work,
        layout=layout,
        trained=trained,
    )
    return estimate_question(question, measured)


def estimate_question(question: TrainingQuestion, measured: Sequence[Path] = ()) -> Estimate:
    """The estimate, with what was assumed and what the measured steps changed."""
    check(question)
    coefficients = coefficients_for(question.cluster.device)
    changes: list[CoefficientChange] = []
    if measured:
        steps = [step for path in measured for step in _measured_steps(path, question)]
        coefficients, changes = calibrate(steps, question.cluster, coefficients)
    estimate = estimate_one(
        question.model, question.cluster, question.workload, question.layout, coefficients
    )
    sentences = [*estimate.assumed, *_assumed(question, coefficients, bool(measured))]
    return msgspec.structs.replace(estimate, assumed=sentences, calibrated=changes)


def _measured_steps(path: Path, question: TrainingQuestion) -> list[MeasuredStep]:
    """The steps of a file, each of which could have run on as many devices as it filled."""
    steps = read_measured(path, question.model, question.workload, question.layout)
    for step in steps:
        filled = replace(question.cluster, num_devices=step.layout.num_devices)
        try:
            check(
                replace(
                    question,
                    model=step.model,
                    cluster=filled,
                    workload=step.workload,
                    layout=step.layout,
                )
            )
        except InputError as error:
            raise InputError(f"--measured {path}: {str(error).replace('--', '')}") from None
    return steps


def _assumed(question: TrainingQuestion, coefficients: Coefficients, measured: bool) -> list[str]:
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
    disk = [_DISK] if question.layout.on_disk and _usual(question) else []
    units = [] if device.chip.num_units else [_UNITS.format(device.name, ASSUMED_UNITS)]
    without = precision in ("bf16", "fp16") and precision not in device.peaks
    unfitted = "" if stack_used.fitted else ", no run of which was fitted"
    other = [f"{device.name} has no {precision}: {device.training_dtype} is taken"] * without
    return [
        *images,
        *disk,
        *units,
        *other,
        *trained_sentences(question.trained, question.model),
        f"matmuls reach {share:.0%} of the {precision} peak ({origin})",
        f"software of the class {stack_used.name}{unfitted}; --software names another",
    ]


def _usual(question: TrainingQuestion) -> bool:
    """Whether nobody said how fast the disks are."""
    return question.cluster.disk_read_bytes_per_second == TYPICAL_DISK_BYTES_PER_SECOND
