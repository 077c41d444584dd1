"""The serving model's error on a table of published runs (`ridgeline validate serving`).

Errors are predicted / published - 1 in the row's own metric. By default each row is predicted by
coefficients that never saw its source (`left_out.toml`); a source, or a source's runs of a model on
a device, that no fit has seen, by the shipped ones. Rows that break physics are refused with the
reason; times to the first token of saturated servers say how long a run was, not how fast the
server is, and are reported as insufficient.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeline.cost.arrays import Floats
from ridgeline.cost.serving.load import LoadOutcome
from ridgeline.cost.serving.matmul_dtypes import widening
from ridgeline.cost.serving.weight_formats import weight_format
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.serving.coefficients import (
    LEFT_OUT,
    Calibration,
    prior_calibration,
    read_calibration,
    read_left_out,
)
from ridgeline.plan.serving.prepared import (
    PreparedServing,
    family,
    floor_reason,
    in_metric,
    outcome,
    prepare,
)
from ridgeline.plan.serving.published import LATENCIES, PublishedServing, read_table
from ridgeline.plan.serving.spreads import factor_of
from ridgeline.plan.table_cells import Unreadable, error_figures, overall_figures, unjudged
from ridgeline.records.validation import (
    ServingErrors,
    ServingOverall,
    ServingRow,
    ServingValidation,
)

SATURATED = "saturated"
"""How the reason begins of a row that queues."""


def validate_serving(table: Path | str, *, calibration: str = "unseen") -> ServingValidation:
    """Predict every row of a table and hold it against what was published.

    Args:
        table: A CSV with the columns of `plan/serving/published.py`.
        calibration: `unseen` (each row by coefficients that never saw its source), `shipped`,
            `none` (priors from the literature alone), or a file like `calibration.toml`.
    """
    read = read_table(Path(table))
    runs = [one for one in read if isinstance(one, PublishedServing)]
    rows = {one.row: unjudged(one, ServingRow) for one in read if isinstance(one, Unreadable)}
    models: dict[int, str] = {}
    if runs:
        prepared = prepare(runs)
        found = [_results(prepared, *pair) for pair in _calibrations(prepared, calibration)]
        for part in found:
            rows |= part
        models = {run.row: _kind_of_model(run) for run in runs}
    ordered = [rows[row] for row in sorted(rows)]
    return ServingValidation(
        rows=ordered,
        by_source={
            source: errors_of([row for row in ordered if row.source == source])
            for source in dict.fromkeys(row.source for row in ordered)
        },
        by_metric=_by_metric(ordered, models),
        overall=_overall(ordered, models),
        calibration=calibration,
    )


def _calibrations(prepared: PreparedServing, name: str) -> list[tuple[Calibration, list[int]]]:
    """Which calibration predicts which runs."""
    everyone = list(range(len(prepared.runs)))
    if name == "none":
        return [(prior_calibration(), everyone)]
    if name == "shipped":
        return [(read_calibration(), everyone)]
    if name != "unseen":
        return [(read_calibration(Path(name)), everyone)]
    shipped, left_out = read_calibration(), read_left_out(LEFT_OUT)
    fitted = set(shipped.campaigns)
    groups: dict[str, list[int]] = {}
    for index, run in enumerate(prepared.runs):
        groups.setdefault(run.source if run.campaign in fitted else "", []).append(index)
    return [(left_out.get(source, shipped), mine) for source, mine in groups.items()]


def _results(
    prepared: PreparedServing, calibration: Calibration, mine: Sequence[int]
) -> dict[int, ServingRow]:
    found = outcome(prepared, calibration.logs())
    predicted = in_metric(prepared, found)
    return {
        prepared.runs[index].row: _result(prepared, found, predicted, index, calibration)
        for index in mine
    }


def _result(
    prepared: PreparedServing,
    found: LoadOutcome,
    predicted: Floats,
    index: int,
    calibration: Calibration,
) -> ServingRow:
    run, value = prepared.runs[index], float(predicted[index])
    running = float(found.running[index])
    spread = factor_of(calibration.sigma_of(family(run), run.place, running))
    status, reason = _status(prepared, found, index)
    judged = status == "ok"
    return ServingRow(
        row=run.row,
        source=run.source,
        model=run.cells["model"],
        gpu=run.cells["gpu"],
        n_gpus=run.devices,
        metric_name=run.metric,
        published=run.published,
        predicted=value if status != "refused" else None,
        low=value / spread if judged else None,
        high=value * spread if judged else None,
        error=value / run.published - 1.0 if judged else None,
        kind=family(run),
        status=status,
        reason=reason,
    )


def _status(prepared: PreparedServing, found: LoadOutcome, index: int) -> tuple[str, str]:
    run = prepared.runs[index]
    impossible = floor_reason(run, prepared.hosted, index)
    if impossible:
        return "refused", impossible
    if not found.fits[index]:
        return "refused", (
            f"{run.model.name} and one sequence of {run.prompt + run.completion:.0f} tokens do not"
            f" fit in {run.layout.devices} x {run.device.name}"
        )
    if family(run) == "first_token" and found.saturated[index]:
        return "insufficient", (
            f"{SATURATED}: requests queue, so that the time to the first token grows with the"
            " length of the run, which no column states"
        )
    if family(run) == "first_token" and run.prefill is not None:
        return "insufficient", (
            "disaggregated: most of the time to the first token is the wait for a place in either"
            " pool, which depends on the router and on how the run began, in no column"
        )
    if run.note.noisy:
        return "insufficient", "the table itself says to treat this value as noisy"
    return "ok", "; ".join(_assumptions(run))


def _assumptions(run: PublishedServing) -> list[str]:
    """What a row that is judged was taken for."""
    said = list(run.device.assumed)
    if run.widened:
        said.append(widening(run.device, weight_format(run.cells["weight_dtype"])))
    if run.note.other_attention and not is_expressed(run.model):
        said.append("its attention is linear or sparse in part, and was taken for full attention")
    return said


def is_expressed(model: ModelSpec) -> bool:
    """Whether the model itself says which layers attend in another way."""
    return model.state is not None or model.indexer is not None


def errors_of(rows: Sequence[ServingRow]) -> ServingErrors:
    """Errors of these rows, taken together."""
    return ServingErrors(**error_figures(rows, LATENCIES.__contains__))


def _kind_of_model(run: PublishedServing) -> str:
    """`dense` or `experts`; apart from these what attends in another way: states, chosen tokens."""
    kind = "experts" if run.model.experts else "dense"
    if run.note.other_attention or is_expressed(run.model):
        return f"{kind}, other attention"
    return f"{kind}, two pools" if run.prefill else kind


def _by_metric(rows: Sequence[ServingRow], models: dict[int, str]) -> dict[str, ServingErrors]:
    """Kind of metric, kinds of models apart."""
    groups: dict[str, list[ServingRow]] = {}
    for row in rows:
        if row.error is None:
            continue
        name = f"{row.kind} {models[row.row]}"
        groups.setdefault(name, []).append(row)
    return {name: errors_of(groups[name]) for name in sorted(groups)}


def _overall(rows: Sequence[ServingRow], models: dict[int, str]) -> ServingOverall:
    return ServingOverall(
        **overall_figures(rows, [row.status for row in rows], LATENCIES.__contains__),
        saturated=sum(row.reason.startswith(SATURATED) for row in rows),
        dense=errors_of([row for row in rows if models.get(row.row, "").startswith("dense")]),
        experts=errors_of([row for row in rows if models.get(row.row, "").startswith("experts")]),
    )
