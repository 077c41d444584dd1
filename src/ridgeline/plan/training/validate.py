"""The training model's error on a table of published runs (`ridgeline validate training`).

Errors are of step time, predicted / published - 1, whatever a source prints: throughput, TFLOP/s
and MFU are converted with the source's own way of counting. Figures are taken per source and then
averaged over sources, dense models and mixtures of experts apart, so that no long table decides.
Rows that a source marks as out of memory are judged on the memory verdict alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.training.estimate import COVERAGE_80, VERDICTS, Estimates, estimate_setting
from ridgeline.plan.table_cells import Unreadable, error_figures, number, overall_figures, unjudged
from ridgeline.plan.training.coefficients import (
    CALIBRATION,
    Calibration,
    coefficients_for,
    prior_coefficients,
    read_calibration,
)
from ridgeline.plan.training.prepared import PreparedTraining, prepare
from ridgeline.plan.training.published import TIMES, PublishedTraining, read_table
from ridgeline.records.validation import (
    TrainingErrors,
    TrainingOverall,
    TrainingRow,
    TrainingValidation,
)

GIB = 2.0**30
_NOT_TENSORS = ("slack", "buffers")
_NOT_RESERVED = ("buffers",)
"""Context and communicators, which an allocator does not see."""


def validate_training(table: Path | str, *, calibration: str = "shipped") -> TrainingValidation:
    """Predict every row of a table and hold it against what was published.

    Args:
        table: A CSV with the columns of `plan/training/published.py`.
        calibration: `shipped`, `none` (priors from the literature alone), or a TOML file in the
            format of `plan/training/calibration.toml`.
    """
    read = read_table(Path(table))
    runs = [one for one in read if isinstance(one, PublishedTraining)]
    results = {one.row: unjudged(one, TrainingRow) for one in read if isinstance(one, Unreadable)}
    kinds: dict[int, bool] = {}
    prepared = None
    if runs:
        prepared = prepare(runs, calibration_called(calibration))
        found = estimate_setting(prepared.setting, prepared.sigma)
        for index, run in enumerate(runs):
            results[run.row] = _result(prepared, found, index)
            kinds[run.row] = run.model.experts is not None
    rows = [results[row] for row in sorted(results)]
    return TrainingValidation(
        rows=rows,
        by_source={
            source: summarise([row for row in rows if row.source == source])
            for source in dict.fromkeys(row.source for row in rows)
        },
        overall=_overall(rows, kinds, regrets(prepared, results) if prepared else []),
        calibration=calibration,
    )


def calibration_called(name: str) -> Calibration:
    """The calibration that the command line names."""
    if name == "none":
        return prior_coefficients
    path = CALIBRATION if name == "shipped" else Path(name)
    read_calibration(path)
    return partial(coefficients_for, path=path)


def _result(prepared: PreparedTraining, found: Estimates, index: int) -> TrainingRow:
    run = prepared.runs[index]
    seconds = float(found.step_seconds[index])
    spread = float(np.exp(COVERAGE_80 * found.sigma[index]))
    published_seconds = float(prepared.published_seconds[index])
    published = number(run.cells["metric_value"])
    verdict = VERDICTS[int(found.verdict[index])]
    memory = number(run.cells.get("peak_mem_gb", ""))
    predicted = low = high = error = None
    reason = ""
    if published is not None:
        metric = run.cells["metric_name"]
        ends = [
            _in_metric(metric, published, published_seconds, seconds * factor)
            for factor in (1.0, 1.0 / spread, spread)
        ]
        predicted, low, high = ends[0], min(ends[1:]), max(ends[1:])
        error = seconds / published_seconds - 1.0
    elif run.note.out_of_memory:
        reason = "out of memory: " + ("called right" if verdict == "oom" else "not foreseen")
    elif memory is None:
        reason = "nothing published to compare with"
    status = "ok" if published is not None or memory is not None or run.note.out_of_memory else None
    return TrainingRow(
        row=run.row,
        source=run.source,
        model=run.cells["model"],
        gpu=run.cells["gpu"],
        n_gpus=run.cluster.num_devices,
        metric_name=run.cells["metric_name"],
        published=published,
        predicted=predicted,
        low=low,
        high=high,
        error=error,
        peak_memory_published=memory,
        peak_memory_predicted=_peak_bytes(run, found, index) / GIB,
        verdict=verdict,
        status=status or "insufficient",
        reason=reason,
    )


def _in_metric(metric: str, published: float, published_seconds: float, seconds: float) -> float:
    """Throughputs, TFLOP/s and MFU are inverse to the step time."""
    if metric in TIMES:
        return seconds / TIMES[metric]
    return published * published_seconds / seconds


def _peak_bytes(run: PublishedTraining, found: Estimates, index: int) -> float:
    skipped: tuple[str, ...] = _NOT_RESERVED if run.note.reserved_memory else ()
    skipped = _NOT_TENSORS if run.note.allocated_memory else skipped
    return float(
        sum(term[index] for name, term in found.memory_terms.items() if name not in skipped)
    )


def summarise(rows: Sequence[TrainingRow]) -> TrainingErrors:
    """Errors of these rows, taken together."""
    memory = _memory_errors(rows)
    return TrainingErrors(
        **error_figures(rows), memory_rows=len(memory), memory_median=_median(memory)
    )


def _memory_errors(rows: Sequence[TrainingRow]) -> Floats:
    errors = [
        abs(row.peak_memory_predicted / row.peak_memory_published - 1.0)
        for row in rows
        if row.peak_memory_published and row.peak_memory_predicted is not None
    ]
    return np.array(errors)


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None


def average(parts: Sequence[TrainingErrors]) -> TrainingErrors:
    """Mean over sources, each counting once."""
    timed = [part for part in parts if part.rows]

    def mean(name: str) -> float | None:
        values = [getattr(part, name) for part in timed]
        return float(np.mean(values)) if values else None

    return TrainingErrors(
        rows=sum(part.rows for part in timed),
        median=mean("median"),
        p90=mean("p90"),
        bias=mean("bias"),
        coverage=mean("coverage"),
        width=mean("width"),
        mean_of_sources=mean("median"),
        p90_of_sources=mean("p90"),
    )


def _overall(
    rows: list[TrainingRow], kinds: dict[int, bool], regret: Sequence[float]
) -> TrainingOverall:
    sources = list(dict.fromkeys(row.source for row in rows))
    halves = []
    for experts in (False, True):
        alike = [row for row in rows if kinds.get(row.row) is experts]
        halves.append(
            average([summarise([r for r in alike if r.source == source]) for source in sources])
        )
    oom = [row for row in rows if row.reason.startswith("out of memory")]
    memory = _memory_errors(rows)
    return TrainingOverall(
        **overall_figures(rows, [row.status for row in rows]),
        dense=halves[0],
        experts=halves[1],
        memory_rows=len(memory),
        memory_median=_median(memory),
        oom_rows=len(oom),
        oom_right=sum(row.verdict == "oom" for row in oom),
        regret_groups=len(regret),
        regret_median=float(np.median(regret)) if len(regret) else None,
    )


SAME = (
    "source", "model", "layers", "hidden", "heads", "seq", "gpu", "n_gpus", "global_batch",
    "precision",
)  # fmt: skip
"""Columns that rows of one layout comparison share."""


def regrets(prepared: PreparedTraining, results: dict[int, TrainingRow]) -> list[float]:
    """Per set of rows that differ only in layout: published time of our pick over the best."""
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for index, run in enumerate(prepared.runs):
        error = results[run.row].error
        if error is None or run.note.outlier:
            continue
        seconds = float(prepared.published_seconds[index])
        key = tuple(run.cells.get(name, "") for name in SAME)
        groups.setdefault(key, []).append((seconds * (1.0 + error), seconds))
    found = []
    for members in groups.values():
        if len(members) > 1:
            best = min(published for _, published in members)
            found.append(min(members)[1] / best - 1.0)
    return found
