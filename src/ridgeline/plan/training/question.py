"""What is asked of the training model: one run, and whether it can run at all."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ridgeline.cost.training.setting import peak_of
from ridgeline.cost.training.workload import Workload
from ridgeline.errors import InputError
from ridgeline.hardware.cluster import Cluster
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.training.trained import WHOLE, Trained, check_trained
from ridgeline.records.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingQuestion:
    """One run to predict."""

    model: ModelSpec
    cluster: Cluster
    workload: Workload
    layout: Layout
    trained: Trained = WHOLE


def check(question: TrainingQuestion) -> None:
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
    if layout.vpp > 1 and layout.pp == 1:
        raise InputError(
            f"--vpp {layout.vpp} cuts what a pipeline rank has into chunks, and --pp is 1; leave it"
            " out"
        )
    if layout.offload == "all-on-disk" and layout.zero != 3:
        raise InputError(
            f"--offload all-on-disk keeps shards of parameters on disk, and --zero {layout.zero}"
            " shards none; give --zero 3"
        )
    if layout.ep > 1:
        _check_experts(model, layout)
    check_trained(question.trained, layout)
    if question.workload.seq % layout.cp:
        raise InputError(f"--cp {layout.cp} does not divide --seq {question.workload.seq}")
    peaks = cluster.device.peaks
    if math.isnan(peak_of(cluster.device, layout.precision)):
        raise InputError(
            f"--precision {layout.precision}: {cluster.device.name} has no"
            f" {layout.precision} units; it has"
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
