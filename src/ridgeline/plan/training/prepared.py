"""Rows of a published table as one computation: empty cells filled, metrics turned into seconds.

Filling needs the cost model itself (what fits, what is fastest), with shipped or given
coefficients; the measured value is read only afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from ridgeline.cost.arrays import Floats, as_arrays, join
from ridgeline.cost.training.attention import attended_tokens, attention_flops
from ridgeline.cost.training.estimate import VERDICTS, estimate_setting, spread_of
from ridgeline.cost.training.layouts import FULL, stack_layouts
from ridgeline.cost.training.setting import Setting, setting_of
from ridgeline.cost.training.step import step_flops
from ridgeline.cost.training.workload import LowRankAdapters
from ridgeline.plan.notes import TrainingNote
from ridgeline.plan.training.coefficients import Calibration
from ridgeline.plan.training.published import TIMES, Candidate, PublishedTraining

OOM = VERDICTS.index("oom")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTraining:
    """Published runs as arrays, one row each."""

    runs: list[PublishedTraining]
    chosen: list[Candidate]
    setting: Setting
    sigma: Floats
    """Standard deviation of log(true / predicted step time)."""
    published_seconds: Floats
    """Step time; nan for rows that publish none."""


def prepare(runs: Sequence[PublishedTraining], calibration: Calibration) -> PreparedTraining:
    """Choose a layout for every run and lay all of them out as one computation."""
    chosen = [choose(run, calibration) for run in runs]
    settings = [_setting(run, [one], calibration) for run, one in zip(runs, chosen, strict=True)]
    setting = join(settings)
    flops = counted_flops(setting, [run.note for run in runs])
    seconds = np.array([_seconds(run, setting, flops, i) for i, run in enumerate(runs)])
    return PreparedTraining(
        runs=list(runs),
        chosen=chosen,
        setting=setting,
        sigma=np.array(
            [
                math.hypot(
                    spread_of(run.model, run.workload, calibration(run.cluster.device)),
                    _unstated_spread(run, one, calibration),
                )
                for run, one in zip(runs, chosen, strict=True)
            ]
        ),
        published_seconds=seconds,
    )


def choose(run: PublishedTraining, calibration: Calibration) -> Candidate:
    """The least sharded, then fastest per sequence, of the candidates that fit in memory."""
    candidates = run.candidates
    if len(candidates) == 1:
        return candidates[0]
    setting = _setting(run, candidates, calibration)
    found = estimate_setting(setting, np.zeros(len(candidates)))
    fits = found.verdict != OOM
    if not fits.any():
        return candidates[int(np.argmin(found.peak_bytes))]
    zero = setting.layouts.zero
    allowed = fits & (zero == zero[fits].min())
    rate = np.where(allowed, found.step_seconds / setting.layouts.global_batch, np.inf)
    return candidates[int(np.argmin(rate))]


def _unstated_spread(run: PublishedTraining, chosen: Candidate, calibration: Calibration) -> float:
    """Standard deviation of log step time over what a row leaves open about recomputation.

    Not stated is not none: all that fit in memory could have run, and are held for as likely.
    """
    alike = [
        one
        for one in run.candidates
        if msgspec.structs.replace(one.layout, recompute=chosen.layout.recompute) == chosen.layout
    ]
    if len(alike) < 2:
        return 0.0
    setting = _setting(run, alike, calibration)
    found = estimate_setting(setting, np.zeros(len(alike)))
    fits = found.verdict != OOM
    return float(np.std(np.log(found.step_seconds[fits]))) if fits.any() else 0.0


def _setting(
    run: PublishedTraining, candidates: Sequence[Candidate], calibration: Calibration
) -> Setting:
    layouts = stack_layouts([one.layout for one in candidates])
    coefficients = calibration(run.cluster.device)
    setting = setting_of(run.model, run.cluster, run.workload, layouts, coefficients)
    return replace(
        setting,
        recompute_share=np.array([one.recompute_share for one in candidates]),
    )


def counted_flops(setting: Setting, notes: Sequence[TrainingNote]) -> Floats:
    """FLOPs of one step over all devices, counted as each source counts them.

    Of fine-tuning with adapters sources count as if the weights were trained.
    """
    weights = as_arrays(LowRankAdapters())
    model, executed = step_flops(replace(setting, adapters=weights))
    full = np.array([one.attention == "full" for one in notes])
    recomputed = np.array([one.recomputed for one in notes])
    layouts = setting.layouts
    devices = setting.num_devices
    layers = setting.dims.layers / layouts.pp
    kernel = devices * layouts.num_microbatches * layers * attention_flops(setting)
    whole = kernel * setting.seq / attended_tokens(setting)
    counted = np.where(full | (setting.dims.causal == 0), whole, whole / 2.0)
    passes = np.where(recomputed & (layouts.recompute == FULL), 4.0, 3.0)
    return np.where(recomputed, executed, model) + passes * (counted - kernel)


def _seconds(run: PublishedTraining, setting: Setting, flops: Floats, index: int) -> float:
    text = run.cells["metric_value"]
    if not text:
        return float("nan")
    value, metric = float(text), run.cells["metric_name"]
    layouts, devices = setting.layouts, float(setting.num_devices[index])
    if metric in TIMES:
        return value * TIMES[metric]
    if "_per_s_" in metric:
        each = run.workload.seq if metric.startswith("tokens") else 1.0
        among = devices if metric.endswith("per_gpu") else 1.0
        return float(layouts.global_batch[index]) * each / among / value
    if metric == "tflops_per_gpu":
        return float(flops[index]) / devices / (value * 1e12)
    return float(flops[index]) / devices / (value * float(setting.site.peak_sixteen[index]))
