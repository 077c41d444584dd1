"""What `ridgeline validate` shows: how far predictions are from published runs."""

from __future__ import annotations

from collections import Counter

from ridgeline import quantity
from ridgeline.records.validation import (
    Errors,
    ServingErrors,
    ServingValidation,
    TrainingErrors,
    TrainingValidation,
    VisionValidation,
)
from ridgeline.report.document import (
    Cell,
    DataTable,
    Lines,
    ReportDocument,
    TableRow,
    figures,
    words,
)

WORDS = {
    "unseen": "each source by coefficients fitted without it",
    "shipped": "by the shipped coefficients, fitted to all sources",
    "none": "by the literature alone",
}
KINDS = {"first_token": "time to first token", "next_token": "time per token"}
MOST_REASONS = 12
MOST_FAILED_ROWS = 20
ERRORS = figures("rows", "median", "p90", "bias in speed", "inside 80 %")


def training_validation_document(found: TrainingValidation) -> ReportDocument:
    """One line per source, then the averages, then what could not be judged."""
    whole = found.overall
    rows = [
        *(TableRow((source, *_training(errors))) for source, errors in found.by_source.items()),
        TableRow(("dense models, mean of sources", *_training(whole.dense)), "strong"),
        TableRow(("mixtures of experts, mean of sources", *_training(whole.experts)), "strong"),
    ]
    title = f"Step time, predicted against published ({found.calibration} calibration)"
    table = DataTable((words("source"), *ERRORS, *figures("memory")), rows, title=title)
    memory = (
        f"peak memory: median error {_share(whole.memory_median)} over {whole.memory_rows} rows"
    )
    judged = f"{whole.ok} of {whole.rows} rows judged; {whole.refused} refused"
    choice = f"choice of layout: {whole.regret_groups} comparisons, the one we would pick is"
    lines = [
        f"{judged}, {whole.insufficient} insufficient",
        f"{memory}; out of memory called right {whole.oom_right} of {whole.oom_rows} times",
        f"{choice} {_share(whole.regret_median)} slower than the best in the median",
    ]
    failed = [row for row in found.rows if row.status != "ok"][:MOST_FAILED_ROWS]
    lines += [f"row {row.row} ({row.source}): {row.status}: {row.reason}" for row in failed]
    lines += found.conventions
    return ReportDocument(title, [table, Lines(lines)])


def serving_validation_document(found: ServingValidation) -> ReportDocument:
    """One line per metric, one per source, then what could not be judged."""
    rows = []
    for named, errors in found.by_metric.items():
        kind, _, models = named.partition(" ")
        rows.append(TableRow((f"{KINDS.get(kind, kind)}, {models}", *_serving(errors)), "strong"))
    rows += [TableRow((source, *_serving(errors))) for source, errors in found.by_source.items()]
    how = WORDS.get(found.calibration, f"by {found.calibration}")
    title = f"Serving, predicted against published, {how}"
    whole = found.overall
    unjudged = f"{whole.refused} refused, {whole.insufficient} insufficient"
    lines = [f"{whole.ok} of {whole.rows} rows judged; {unjudged}, {whole.saturated} saturated"]
    reasons = Counter((row.status, row.reason) for row in found.rows if row.status != "ok")
    for (status, reason), count in reasons.most_common(MOST_REASONS):
        lines.append(f"{count} x {status}: {reason}")
    lines += found.conventions
    table = DataTable((words("of", ""), *ERRORS, *figures("by source")), rows, title=title)
    return ReportDocument(title, [table, Lines(lines)])


def vision_validation_document(found: VisionValidation) -> ReportDocument:
    """Kinds of time, then classes of software, then sources; then what could not be judged."""
    rows = []
    for groups in (found.by_kind, found.by_class, found.by_source):
        for name, ways in groups.items():
            for way, errors in ways.items():
                left = f"no {way} of its own" if found.calibration == "unseen" else way
                cells = (name, left, *_errors(errors))
                rows.append(TableRow(cells, "strong" if groups is found.by_kind else ""))
    title = "Vision models, predicted against published"
    table = DataTable((words("of"), words("fit"), *ERRORS), rows, title=title)
    whole = found.overall
    judged = f"{whole.ok} of {whole.rows} rows judged; {whole.refused} refused"
    lines = [f"{judged}, {whole.insufficient} insufficient"]
    reasons = Counter((row.status, row.reason) for row in found.rows if row.status != "ok")
    for (status, reason), count in reasons.most_common(MOST_REASONS):
        lines.append(f"{count} x {status}: {reason}")
    return ReportDocument(title, [table, Lines(lines)])


def _training(errors: TrainingErrors) -> tuple[Cell, ...]:
    return (*_errors(errors), _share(errors.memory_median))


def _serving(errors: ServingErrors) -> tuple[Cell, ...]:
    return (*_errors(errors), _share(errors.mean_of_sources))


def _errors(errors: Errors) -> tuple[Cell, ...]:
    return (
        str(errors.rows),
        _share(errors.median),
        _share(errors.p90),
        None if errors.bias is None else quantity.change(errors.bias),
        None if errors.coverage is None else quantity.percent(errors.coverage, 0),
    )


def _share(value: float | None) -> str | None:
    return None if value is None else quantity.percent(value, 1)
