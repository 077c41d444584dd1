"""The error of the vision model on a table of published runs (`ridgeline validate vision`).

Errors are predicted / published - 1 in the row's own metric. *Unseen* predicts each row twice: by
coefficients that never saw its device, and by coefficients that never saw its family
(`left_out.csv`); what no fit has seen is predicted by the shipped ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from ridgeline.cost.vision.coefficients import VisionCoefficients, kind_of_time
from ridgeline.errors import InputError
from ridgeline.plan.table_cells import Unreadable, error_figures, overall_figures, unjudged
from ridgeline.plan.vision.coefficients import (
    left_out_coefficients,
    prior_coefficients,
    shipped_coefficients,
    trait_priors,
)
from ridgeline.plan.vision.fit import PreparedTimes, predicted_logs, prepare
from ridgeline.plan.vision.published import PublishedVision, read_table
from ridgeline.records.validation import (
    Errors,
    Overall,
    VisionRow,
    VisionValidation,
)

Unseen = Literal["device", "family"]
LEFT_OUT: tuple[Unseen, ...] = ("device", "family")
PLAIN_CALIBRATIONS = ("shipped", "none")


def validate_vision(table: Path | str, *, calibration: str = "unseen") -> VisionValidation:
    """Predict every row of a table and hold it against what was published.

    Args:
        table: A CSV, gzip or not, with the columns of `plan/vision/published.py`.
        calibration: `unseen` (each row by coefficients that never saw its device, and again by
            some that never saw its family), `shipped`, or `none` (the priors alone).

    Raises:
        InputError: It is no such table, or no such calibration.
    """
    if calibration not in ("unseen", *PLAIN_CALIBRATIONS):
        raise InputError(f"--calibration {calibration}: use unseen, shipped or none")
    read = read_table(Path(table))
    runs = [one for one in read if isinstance(one, PublishedVision)]
    refused = [unjudged(one, VisionRow) for one in read if isinstance(one, Unreadable)]
    parts: dict[str, list[VisionRow]] = {}
    if runs:
        prepared = prepare(runs)
        ways: tuple[str, ...] = LEFT_OUT if calibration == "unseen" else (calibration,)
        parts = {way: _rows(prepared, way) for way in ways}
    judged = [row for rows in parts.values() for row in rows]
    main = next(iter(parts.values()), [])
    whole = [*main, *refused]
    return VisionValidation(
        rows=sorted([*judged, *refused], key=lambda row: (row.row, row.left_out)),
        by_kind=_by(parts, lambda row: row.kind),
        by_class=_by(parts, lambda row: f"{row.software}, {row.kind}"),
        by_source=_by(parts, lambda row: row.source),
        overall=Overall(**overall_figures(whole, [row.status for row in whole], _is_time)),
        calibration=calibration,
    )


def _rows(prepared: PreparedTimes, way: str) -> list[VisionRow]:
    """Every run by the coefficients that this way allows it."""
    groups: dict[str, list[int]] = {}
    for index, run in enumerate(prepared.runs):
        groups.setdefault(_key(run, way), []).append(index)
    logs = np.zeros(len(prepared.runs))
    for name, indices in groups.items():
        found = _coefficients(way, name)
        matrix = np.array([found.logs[one.name] for one in trait_priors()])
        logs[indices] = predicted_logs(prepared.of(np.array(indices)), matrix)
    width, seen = shipped_coefficients().width, way != "device"
    return [
        _row(run, float(np.exp(log)), width(run.device, run.setting, seen=seen), way)
        for run, log in zip(prepared.runs, logs.tolist(), strict=True)
    ]


def _key(run: PublishedVision, way: str) -> str:
    return {"device": run.device.name, "family": run.family}.get(way, "")


def _coefficients(way: str, name: str) -> VisionCoefficients:
    if way == "none":
        return prior_coefficients()
    return left_out_coefficients().get((way, name), shipped_coefficients())


def _row(run: PublishedVision, seconds: float, log: float, way: str) -> VisionRow:
    predicted = run.in_metric(seconds)
    ends = sorted(run.in_metric(seconds * factor) for factor in (np.exp(-log), np.exp(log)))
    return VisionRow(
        row=run.row,
        source=run.source,
        model=run.model,
        gpu=run.gpu,
        n_gpus=run.num_devices,
        metric_name=run.metric,
        published=run.published,
        predicted=predicted,
        low=float(ends[0]),
        high=float(ends[1]),
        error=predicted / run.published - 1.0,
        kind=kind_of_time(run.device, run.setting),
        software=run.setting.software,
        left_out=way if way in LEFT_OUT else "",
        status="ok",
    )


def _by(
    parts: Mapping[str, Sequence[VisionRow]], name: Callable[[VisionRow], str]
) -> dict[str, dict[str, Errors]]:
    """Name of a group → what was left out → errors."""
    found: dict[str, dict[str, Errors]] = {}
    for way, rows in parts.items():
        groups: dict[str, list[VisionRow]] = {}
        for row in rows:
            groups.setdefault(name(row), []).append(row)
        for key in sorted(groups):
            found.setdefault(key, {})[way] = Errors(**error_figures(groups[key], _is_time))
    return found


def _is_time(metric: str) -> bool:
    return metric == "latency_ms"
