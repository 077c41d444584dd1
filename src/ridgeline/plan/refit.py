"""Fit the calibrated coefficients to published runs: robust least squares with priors.

Errors are log(predicted / published). Every source weighs as much as `SOURCE_ROWS` rows at most,
so that a long table does not outvote a short one; large errors count in proportion to their size,
not its square (pseudo-Huber loss). Each coefficient has a prior from the literature and a spread
around it, so that a source can be left out without leaving a coefficient undetermined. Minimised
by damped Gauss-Newton on the logarithms of the coefficients (Levenberg-Marquardt).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ridgeline.cost.coefficients import Coefficients, Rates, rates_of
from ridgeline.cost.layouts import Bools, Floats
from ridgeline.cost.setting import Setting
from ridgeline.cost.training import estimate_setting
from ridgeline.hardware.facts import Device
from ridgeline.plan.calibration import coefficients_for
from ridgeline.plan.least_squares import minimised
from ridgeline.plan.prepared import Calibration, Prepared

SOURCE_ROWS = 6
"""Rows that one source counts for, however many it has."""
EXPERT_WEIGHT = 0.3
"""Weight of a mixture-of-experts row: the same layout moves by a factor of two between releases."""
LOSS_SCALE = 0.06
"""Error in log time from which the loss grows linearly: about the noise between releases."""
STEP = 0.01
"""Of the finite differences, in log coefficient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One fitted number: where it goes, what is believed before the data."""

    key: str
    """Field of `Coefficients`."""
    prior: float
    spread: float
    """Standard deviation of the prior's logarithm."""
    low: float
    high: float
    why: str
    """Where the prior comes from."""
    architecture: str = ""
    """Start of the architecture's name; empty: all devices."""
    precisions: tuple[str, ...] = ()
    """For `gemm`: the precisions that share this number."""

    @property
    def name(self) -> str:
        """As it is written in reports."""
        parts = [self.key, self.architecture, "/".join(self.precisions)]
        return ".".join(part for part in parts if part)


def calibration_with(
    parameters: Sequence[Parameter], logs: Floats, base: Calibration = coefficients_for
) -> Calibration:
    """Device → coefficients, with the parameters at these (logarithmic) values."""

    def of_device(device: Device) -> Coefficients:
        start = base(device)
        gemm = dict(start.gemm)
        changes: dict[str, float] = {}
        for parameter, value in zip(parameters, np.exp(logs).tolist(), strict=True):
            if not device.architecture.startswith(parameter.architecture):
                continue
            if parameter.key == "gemm":
                gemm |= dict.fromkeys(parameter.precisions, value)
            else:
                changes[parameter.key] = value
        return replace(start, gemm=gemm, **changes)

    return of_device


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Measured steps to fit to."""

    devices: list[Device]
    setting: Setting
    log_seconds: Floats
    weights: Floats
    """How many errors of `LOSS_SCALE` each row's error counts for; 0 leaves it out."""


def observed(prepared: Prepared, use: Bools) -> Observed:
    """Published runs, those where `use` is true, sources weighing alike."""
    use = use & usable(prepared)
    keys = [(run.source, run.model.experts is not None) for run in prepared.runs]
    counts = Counter(key for key, used in zip(keys, use.tolist(), strict=True) if used)
    weights = [
        min(counts[key], SOURCE_ROWS) / counts[key] * (EXPERT_WEIGHT if key[1] else 1.0)
        if counts[key]
        else 0.0
        for key in keys
    ]
    return Observed(
        devices=[run.cluster.device for run in prepared.runs],
        setting=prepared.setting,
        log_seconds=np.log(np.where(use, prepared.published_seconds, 1.0)),
        weights=np.where(use, weights, 0.0),
    )


def predict_logs(devices: Sequence[Device], setting: Setting, calibration: Calibration) -> Floats:
    """Logarithm of each row's predicted step time."""
    groups: dict[str, list[int]] = {}
    for index, device in enumerate(devices):
        groups.setdefault(device.name, []).append(index)
    columns = {field.name: np.zeros(len(devices)) for field in fields(Rates)}
    for indices in groups.values():
        layouts = setting.layouts.take(np.array(indices))
        rates = rates_of(calibration(devices[indices[0]]), layouts)
        for name, column in columns.items():
            column[indices] = getattr(rates, name)
    found = estimate_setting(replace(setting, rates=Rates(**columns)), np.zeros(len(devices)))
    return np.asarray(np.log(found.step_seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Where the fit ended."""

    logs: Floats
    cost: float


def fit(
    seen: Observed,
    parameters: Sequence[Parameter],
    start: Floats,
    *,
    base: Calibration = coefficients_for,
    rounds: int = 25,
) -> Fit:
    """The most plausible coefficients given what was seen."""
    problem = _Problem(seen, parameters, base)
    low = np.log([one.low for one in parameters])
    high = np.log([one.high for one in parameters])
    logs, cost = minimised(problem, start, low=low, high=high, rounds=rounds)
    return Fit(logs=logs, cost=cost)


def leave_one_source_out(
    prepared: Prepared, parameters: Sequence[Parameter], start: Floats, base: Calibration
) -> Floats:
    """Log error of every row under coefficients fitted without its source."""
    sources = np.array([run.source for run in prepared.runs])
    errors = np.full(len(sources), np.nan)
    for source in sorted(set(sources)):
        held = sources == source
        seen = observed(prepared, ~held)
        found = fit(seen, parameters, start, base=base, rounds=12)
        calibration = calibration_with(parameters, found.logs, base)
        predicted = predict_logs(seen.devices, prepared.setting, calibration)
        errors[held] = (predicted - np.log(prepared.published_seconds))[held]
    return errors


def usable(prepared: Prepared) -> Bools:
    """Rows to fit: those with a time that their source does not call an outlier."""
    marked = np.array(["OUTLIER" in run.cells.get("note", "") for run in prepared.runs])
    return np.asarray(np.isfinite(prepared.published_seconds) & ~marked)


@dataclass(frozen=True, slots=True)
class _Problem:
    seen: Observed
    parameters: Sequence[Parameter]
    base: Calibration

    @property
    def prior(self) -> Floats:
        return np.log([one.prior for one in self.parameters])

    @property
    def spread(self) -> Floats:
        return np.array([one.spread for one in self.parameters])

    def errors(self, logs: Floats) -> Floats:
        calibration = calibration_with(self.parameters, logs, self.base)
        predicted = predict_logs(self.seen.devices, self.seen.setting, calibration)
        return predicted - self.seen.log_seconds

    def cost(self, logs: Floats, errors: Floats) -> float:
        loss = 2.0 * (np.sqrt(1.0 + (errors / LOSS_SCALE) ** 2) - 1.0)
        belief = ((logs - self.prior) / self.spread) ** 2
        return float(self.seen.weights @ loss + belief.sum())

    def linearised(self, logs: Floats, errors: Floats) -> tuple[Floats, Floats]:
        """Curvature and half the gradient of the cost, errors taken as linear at `logs`."""
        columns = []
        for index in range(len(logs)):
            moved = logs.copy()
            moved[index] += STEP
            columns.append((self.errors(moved) - errors) / STEP)
        slopes = np.stack(columns, axis=1)
        trust = self.seen.weights / np.sqrt(1.0 + (errors / LOSS_SCALE) ** 2) / LOSS_SCALE**2
        curvature = (slopes * trust[:, None]).T @ slopes + np.diag(self.spread**-2)
        gradient = (slopes * trust[:, None]).T @ errors + (logs - self.prior) / self.spread**2
        return curvature, gradient
