"""The estimate of one training step: how long it takes, why, and whether it fits in memory.

`estimate_training` works on arrays of layouts: one layout or a million cost the same code. The
time is put together in `step.py`, the memory in `memory.py`; `setting.py` turns model, cluster and
software into the numbers that both use. `estimate_one` gives one layout as a record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.cost.arrays import Floats, Ints
from ridgeline.cost.training.adapters import adapter_parameters
from ridgeline.cost.training.coefficients import Coefficients
from ridgeline.cost.training.layouts import Layouts, stack_layouts
from ridgeline.cost.training.memory import peak_terms, stage_terms
from ridgeline.cost.training.setting import Setting, setting_of
from ridgeline.cost.training.step import step_flops, step_terms
from ridgeline.cost.training.traffic import sent_bytes
from ridgeline.cost.training.workload import Workload
from ridgeline.hardware.cluster import Cluster
from ridgeline.models.counts import parameter_count
from ridgeline.models.spec import ModelSpec
from ridgeline.records.estimate import Estimate, Fit, MemoryEstimate, StageMemory
from ridgeline.records.layout import Layout

VERDICTS: tuple[Fit, Fit, Fit] = ("fits", "tight", "oom")
TIGHT = 0.92
"""Share of the capacity above which fragmentation decides whether a run survives."""
IMAGE_SIGMA = 0.24
"""The spread at which the interval holds 80 % of 33 published training runs of ViTs, tiny to huge,
on an RTX 3090 (timm, Apache-2.0). No run with images is among those that were fitted to."""
COVERAGE_80 = 1.2816
"""Standard deviations on each side that hold 80 % of a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Arrays, one entry per layout."""

    step_seconds: Floats
    terms: dict[str, Floats]
    """Term → exposed seconds; they add up to `step_seconds`."""
    memory_terms: dict[str, Floats]
    """Term → bytes on the fullest stage; they add up to `peak_bytes`."""
    peak_bytes: Floats
    capacity_bytes: Floats
    verdict: Ints
    """The index into `VERDICTS`."""
    model_flops: Floats
    """FLOPs of one step on all devices, without recomputation, causal masks counted as halves."""
    hardware_flops: Floats
    sigma: Floats
    """Standard deviation of log(true / predicted step time)."""

    @property
    def low_seconds(self) -> Floats:
        """Lower end of the interval that holds 80 of 100 such runs."""
        return self.step_seconds * np.exp(-COVERAGE_80 * self.sigma)

    @property
    def high_seconds(self) -> Floats:
        """Upper end of the same interval."""
        return self.step_seconds * np.exp(COVERAGE_80 * self.sigma)


def estimate_training(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    layouts: Layouts,
    coefficients: Coefficients,
) -> Estimates:
    """Step time, its terms and memory of one model and cluster under many layouts."""
    setting = setting_of(model, cluster, workload, layouts, coefficients)
    return estimate_setting(
        setting, np.full(len(layouts), spread_of(model, workload, coefficients))
    )


def spread_of(model: ModelSpec, workload: Workload, coefficients: Coefficients) -> float:
    """Standard deviation of log(true / predicted) for such a model in such software."""
    if model.kind == "vision":
        return max(IMAGE_SIGMA, coefficients.sigma)
    spread = coefficients.sigma if model.experts is None else coefficients.sigma_experts
    if not np.all(workload.stack.fitted):
        spread *= coefficients.wider_software
    if np.any(workload.adapters.rank):
        spread *= coefficients.wider_adapters
    return spread


def estimate_setting(setting: Setting, sigma: Floats) -> Estimates:
    """The same for numbers that are already laid out as arrays."""
    rows = len(setting.layouts)
    terms = {name: np.broadcast_to(value, rows) for name, value in step_terms(setting).items()}
    memory = {name: np.broadcast_to(value, rows) for name, value in peak_terms(setting).items()}
    peak = np.sum(list(memory.values()), axis=0)
    capacity = np.broadcast_to(setting.site.capacity_bytes, rows)
    verdict = np.where(peak > capacity, 2, np.where(peak > TIGHT * capacity, 1, 0))
    model_flops, hardware_flops = step_flops(setting)
    return Estimates(
        step_seconds=np.sum(list(terms.values()), axis=0),
        terms=terms,
        memory_terms=memory,
        peak_bytes=peak,
        capacity_bytes=capacity,
        verdict=verdict,
        model_flops=np.broadcast_to(model_flops, rows),
        hardware_flops=np.broadcast_to(hardware_flops, rows),
        sigma=sigma,
    )


def estimate_one(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    layout: Layout,
    coefficients: Coefficients,
) -> Estimate:
    """One layout as a record, with memory for every pipeline stage."""
    layouts = stack_layouts([layout])
    setting = setting_of(model, cluster, workload, layouts, coefficients)
    found = estimate_training(model, cluster, workload, layouts, coefficients)
    step = float(found.step_seconds[0])
    tokens = layout.global_batch * workload.seq
    peak = float(setting.site.peak[0]) * layout.num_devices
    breakdown = {name: float(values[0]) for name, values in found.terms.items()}
    return Estimate(
        layout=layout,
        step_seconds=step,
        interval=(float(found.low_seconds[0]), float(found.high_seconds[0])),
        tokens_per_second_per_gpu=tokens / step / layout.num_devices,
        images_per_second_per_gpu=(
            layout.global_batch / step / layout.num_devices if model.kind == "vision" else None
        ),
        mfu=float(found.model_flops[0]) / step / peak,
        hfu=float(found.hardware_flops[0]) / step / peak,
        flops_convention=_flops_convention(workload, layout),
        trained_parameters=_trained_parameters(model, setting),
        memory=_memory_record(setting, found),
        breakdown=breakdown,
        bottleneck=max(breakdown, key=lambda name: breakdown[name]),
        sent_bytes={name: float(np.ravel(value)[0]) for name, value in sent_bytes(setting).items()},
        assumed=list(cluster.assumed),
    )


def _flops_convention(workload: Workload, layout: Layout) -> str:
    weights = "6 x matrix parameters"
    if workload.adapters.rank:
        weights = "4 x frozen and 6 x adapters' parameters"
    return (
        f"{weights} per token plus attention, causal masks counted as half; over the dense"
        f" {layout.precision} peak"
    )


def _trained_parameters(model: ModelSpec, setting: Setting) -> float:
    """All parameters, or those of the adapters of all layers, each once."""
    if not setting.frozen_weights.any():
        return float(parameter_count(model))
    layouts = setting.layouts
    return float(np.ravel(adapter_parameters(setting) * layouts.pp * layouts.tp)[0])


def _memory_record(setting: Setting, found: Estimates) -> MemoryEstimate:
    stages = []
    for stage in range(int(setting.layouts.pp[0])):
        terms = stage_terms(setting, np.array([float(stage)]))
        plain = {name: float(np.ravel(value)[0]) for name, value in terms.items()}
        stages.append(StageMemory(stage=stage, terms=plain, total_bytes=sum(plain.values())))
    return MemoryEstimate(
        stages=stages,
        peak_bytes=float(found.peak_bytes[0]),
        capacity_bytes=float(found.capacity_bytes[0]),
        verdict=VERDICTS[int(found.verdict[0])],
    )
