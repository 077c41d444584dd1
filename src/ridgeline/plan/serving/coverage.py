"""How sure a prediction is: the spread of errors on sources outside the fit, and its range.

Errors are taken as normal in the logarithm with one spread per kind of metric; each source's own
version, flags and client are in it, since each was predicted by coefficients that never saw it.
What lies outside the range of the fitted runs is refused: nothing there says how wrong it may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ridgeline.cost.arrays import Bools, Floats
from ridgeline.cost.training.estimate import COVERAGE_80
from ridgeline.errors import InputError
from ridgeline.models.counts import parameter_count
from ridgeline.plan.serving.coefficients import Calibration, Spread
from ridgeline.plan.serving.prepared import PreparedServing, family
from ridgeline.plan.serving.published import ServingRun

FAMILIES = ("first_token", "next_token", "throughput")
CAP = 20
"""Rows that one source counts for in a spread."""
LEAST_ROWS = 6
"""Rows of a kind from which its spread is taken; fewer leave what is believed."""
STUDENT = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372, 1.363, 1.356)
"""Where Student's t with 1, 2, … degrees of freedom has a tenth of its mass to the right: a spread
known from few sources is less sure than one known from many (Student, Biometrika 6, 1908)."""
BEYOND = 2.0
"""How far beyond the fitted range, as a factor, a question is still answered."""


def spread_of(prepared: PreparedServing, errors: Floats, use: Bools) -> Spread:
    """Spreads whose 80 % intervals hold 80 % of these errors of sources left out."""
    believed = Spread()
    kinds = np.array([family(run) for run in prepared.runs])
    experts = np.array([run.model.experts is not None for run in prepared.runs])
    values = {}
    for kind in FAMILIES:
        rows = use & (kinds == kind) & ~experts
        found = width(prepared.runs, errors, rows)
        few = for_few_sources(prepared.runs, rows)
        values[kind] = getattr(believed, kind) if found is None else found * few
    scaled = errors / np.array([values[kind] for kind in kinds])
    found = width(prepared.runs, scaled, use & experts)
    factor = believed.experts if found is None else max(found, 1.0)
    return Spread(**values, experts=factor)


def width(runs: Sequence[ServingRun], errors: Floats, rows: Bools) -> float | None:
    """Standard deviation whose 80 % interval holds 80 % of the errors, a source `CAP` at most."""
    index = np.flatnonzero(rows)
    if len(index) < LEAST_ROWS:
        return None
    names = [runs[i].source for i in index.tolist()]
    weights = np.array([min(names.count(name), CAP) / names.count(name) for name in names])
    sizes = np.abs(errors[index])
    order = np.argsort(sizes)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(sizes[order][np.searchsorted(share, 0.8)] / COVERAGE_80)


def for_few_sources(runs: Sequence[ServingRun], rows: Bools) -> float:
    """How much wider a spread is to be taken that so few sources taught."""
    freedom = len({runs[i].source for i in np.flatnonzero(rows).tolist()}) - 1
    return STUDENT[min(max(freedom, 1), len(STUDENT)) - 1] / COVERAGE_80


def sigma_of(run: ServingRun, spread: Spread) -> float:
    """The spread of one run's metric."""
    value = float(getattr(spread, family(run)))
    return value * (spread.experts if run.model.experts else 1.0)


def factor_of(sigma: float) -> float:
    """An 80 % interval reaches from the prediction over this to the prediction times this."""
    return float(np.exp(COVERAGE_80 * sigma))


def features(run: ServingRun) -> dict[str, float]:
    """What the range is about."""
    return {
        "parameters": float(parameter_count(run.model)),
        "tp": float(run.tp),
        "prompt": run.prompt,
        "answer": run.answer,
    }


def ranges_of(runs: Sequence[ServingRun]) -> dict[str, list[float]]:
    """Least and most of each feature."""
    columns: dict[str, list[float]] = {}
    for run in runs:
        for name, value in features(run).items():
            columns.setdefault(name, []).append(value)
    return {name: [min(values), max(values)] for name, values in columns.items()}


def check_range(calibration: Calibration, asked: Mapping[str, float]) -> None:
    """Refuse what no fitted run is near to.

    Raises:
        InputError: With what was asked and what is known.
    """
    for name, value in asked.items():
        if name not in calibration.ranges:
            continue
        low, high = calibration.ranges[name]
        if not low / BEYOND <= value <= high * BEYOND:
            raise InputError(
                f"{name} {value:.4g} is outside what the model was fitted to"
                f" ({low:.4g} to {high:.4g}, a factor of {BEYOND:g} allowed): no honest interval;"
                " measure one run and fit to it, or ask within the range"
            )
