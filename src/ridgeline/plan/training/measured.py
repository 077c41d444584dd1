"""Update the coefficients by one to three measured steps of the user's own (`--measured`).

The shipped coefficients are the prior, with the spreads of `priors.toml`. What a measured step is
off by has three parts, and is divided among them by how far each is known to go: the coefficients
that it depends on, which other layouts depend on in other shares; the pace of the whole system,
which all its steps share; and what is this run's alone, which tells nothing of others and is more
where experts are routed. Each move is reported.

A file is a record of `ridgeline doctor --json` (its median step, under the layout being
predicted), or `{"step_seconds": 1.23}` with, where the run differed from the predicted one,
`"layout": {"tp": 2, …}`, `"seq"` and `"model"`; or a list of those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from ridgeline.cost.arrays import Floats, join
from ridgeline.cost.training.coefficients import Coefficients
from ridgeline.cost.training.estimate import estimate_setting
from ridgeline.cost.training.layouts import stack_layouts
from ridgeline.cost.training.setting import Setting, rates_of, setting_of
from ridgeline.cost.training.workload import Workload
from ridgeline.errors import InputError
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.facts import Device
from ridgeline.models.load import load_model
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.fitting import Parameter, RobustFit
from ridgeline.plan.plausible import check_near
from ridgeline.plan.training.coefficients import (
    Calibration,
    calibration_with,
    coefficients_for,
    priors,
)
from ridgeline.records.estimate import CoefficientChange
from ridgeline.records.input_file import read_json
from ridgeline.records.layout import Layout

PACE_SPREAD = 0.1
"""Standard deviation of the pace of a system, in log."""
OWN_SPREAD = 0.06
"""The same of what is one run's alone: the same configuration moves by 4.7 % in the median between
releases of one publisher, that is 7 % in standard deviation."""
OWN_SPREAD_EXPERTS = 0.2
"""The same of mixtures of experts (docs/results/accuracy_training.md, between releases)."""
MEASURED_SIGMA = 0.08
"""Spread of log(true / predicted) of other runs once calibrated, dense models
(docs/results/accuracy_measured.md)."""
MEASURED_SIGMA_EXPERTS = 0.18
MEASURED_SCALE = 0.15
"""Error in log time of a measured step from which the loss grows linearly."""
LOSS_SCALE = 0.06
"""Error in log time from which the loss grows linearly: about the noise between releases."""
SMALLEST_CHANGE = 0.005
LONGEST_SEQUENCE = 100_000_000
CURE = 'give a doctor record, or {"step_seconds": 1.23, "layout": {"tp": 2, ...}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A step that a user measured."""

    model: ModelSpec
    workload: Workload
    layout: Layout
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Measured steps to fit to."""

    devices: list[Device]
    setting: Setting
    log_seconds: Floats
    weights: Floats
    """How many errors of `loss_scale` each row's error counts for; 0 leaves it out."""
    loss_scale: float = LOSS_SCALE


def read_measured(
    path: Path, model: ModelSpec, workload: Workload, layout: Layout
) -> list[MeasuredStep]:
    """The steps of a file; what it leaves out is as in the run being predicted."""
    content = read_json(path, object, option="--measured", cure=CURE)
    entries = content if isinstance(content, list) else [content]
    if not 1 <= len(entries) <= 3:
        raise InputError(f"--measured {path}: {len(entries)} steps; give one to three")
    return [_step(path, entry, model, workload, layout) for entry in entries]


def _step(
    path: Path, entry: Any, model: ModelSpec, workload: Workload, layout: Layout
) -> MeasuredStep:
    if not isinstance(entry, dict):
        raise InputError(f"--measured {path}: holds {type(entry).__name__}; {CURE}")
    if "profile" in entry:
        entry = {"step_seconds": _median_of_record(entry["profile"])}
    unknown = sorted(set(entry) - {"step_seconds", "layout", "seq", "model"})
    if unknown:
        raise InputError(f"--measured {path}: unknown key {', '.join(unknown)}; {CURE}")
    try:
        stated = msgspec.convert(entry, _Stated)
        ran = msgspec.convert(msgspec.structs.asdict(layout) | stated.layout, Layout)
        named = load_model(stated.model) if stated.model else model
    except (msgspec.ValidationError, InputError) as error:
        raise InputError(f"--measured {path}: {error}; {CURE}") from None
    return MeasuredStep(
        model=named,
        workload=replace(workload, seq=stated.seq or workload.seq),
        layout=ran,
        seconds=stated.step_seconds,
    )


class _Stated(msgspec.Struct, frozen=True, kw_only=True):
    """One step as a file has it."""

    step_seconds: Annotated[float, msgspec.Meta(gt=0.0)]
    layout: dict[str, Any] = {}
    seq: Annotated[int, msgspec.Meta(ge=1, le=LONGEST_SEQUENCE)] | None = None
    model: str | None = None


def _median_of_record(profile: object) -> object:
    """The median step of a doctor record; None where it holds none."""
    steps = profile.get("step_seconds") if isinstance(profile, dict) else None
    return steps.get("p50") if isinstance(steps, dict) else None


def calibrate(
    steps: Sequence[MeasuredStep], cluster: Cluster, shipped: Coefficients
) -> tuple[Coefficients, list[CoefficientChange]]:
    """Coefficients that explain the measured steps, and what moved."""
    device = cluster.device
    parameters = _parameters_of(device, shipped)
    settings = [
        setting_of(
            step.model,
            replace(cluster, num_devices=step.layout.num_devices),
            step.workload,
            stack_layouts([step.layout]),
            shipped,
        )
        for step in steps
    ]
    seen = Observed(
        devices=[device] * len(steps),
        setting=join(settings),
        log_seconds=np.log([step.seconds for step in steps]),
        weights=np.array([(MEASURED_SCALE / _own_spread(step)) ** 2 for step in steps]),
        loss_scale=MEASURED_SCALE,
    )
    expected = np.exp(predict_logs(seen.devices, seen.setting, partial(_always, shipped)))
    for step, seconds in zip(steps, expected.tolist(), strict=True):
        check_near("step_seconds", step.seconds, seconds)
    base = partial(_always, shipped)
    start = np.log([one.prior for one in parameters])
    logs = fit(seen, parameters, start, base=base)
    after = replace(
        calibration_with(parameters, logs, base)(device),
        sigma=min(MEASURED_SIGMA, shipped.sigma),
        sigma_experts=min(MEASURED_SIGMA_EXPERTS, shipped.sigma_experts),
        wider_software=1.0,
        wider_adapters=1.0,
    )
    changes = [
        CoefficientChange(name=one.name, before=one.prior, after=float(value))
        for one, value in zip(parameters, np.exp(logs), strict=True)
        if abs(value / one.prior - 1.0) > SMALLEST_CHANGE
    ]
    return after, changes


def fit(
    seen: Observed,
    parameters: Sequence[Parameter],
    start: Floats,
    *,
    base: Calibration = coefficients_for,
    rounds: int = 25,
) -> Floats:
    """The most plausible logarithms of the coefficients given what was seen."""

    def errors(logs: Floats) -> Floats:
        calibration = calibration_with(parameters, logs, base)
        return predict_logs(seen.devices, seen.setting, calibration) - seen.log_seconds

    problem = RobustFit(
        errors=errors,
        weights=seen.weights,
        loss_scale=seen.loss_scale,
        prior=np.log([one.prior for one in parameters]),
        spread=np.array([one.spread for one in parameters]),
        low=np.log([one.low for one in parameters]),
        high=np.log([one.high for one in parameters]),
    )
    return problem.minimise(start, rounds=rounds)


def predict_logs(devices: Sequence[Device], setting: Setting, calibration: Calibration) -> Floats:
    """Logarithm of each row's predicted step time."""
    kinds = {device.name: device for device in devices}
    names = list(kinds)
    which = np.array([names.index(device.name) for device in devices])
    rates = rates_of([calibration(one) for one in kinds.values()], setting.layouts, which)
    found = estimate_setting(replace(setting, **rates), np.zeros(len(devices)))
    return np.asarray(np.log(found.step_seconds))


def _own_spread(step: MeasuredStep) -> float:
    return OWN_SPREAD if step.model.experts is None else OWN_SPREAD_EXPERTS


def _always(coefficients: Coefficients, _device: Device) -> Coefficients:
    return coefficients


def _parameters_of(device: Device, shipped: Coefficients) -> list[Parameter]:
    """The fitted coefficients of a device, believed to be what is shipped."""
    found = []
    for one in priors():
        if not device.architecture.startswith(one.architecture):
            continue
        value = shipped.gemm[one.precisions[0]] if one.key == "gemm" else getattr(shipped, one.key)
        found.append(msgspec.structs.replace(one, prior=float(value)))
    why = "power limits, cooling and releases move whole systems by about as much"
    pace = float(shipped.pace)
    low, high = pace / 5.0, pace * 5.0
    found.append(Parameter(key="pace", prior=pace, spread=PACE_SPREAD, low=low, high=high, why=why))
    return found
