"""The error of predictions of serving by metric and by source, as a table for the terminal."""

from __future__ import annotations

from collections import Counter

from rich.console import Group
from rich.text import Text

from ridgeline.records.validation import ServingErrors, ServingValidation
from ridgeline.report.fitted_table import FittedTable

WORDS = {
    "unseen": "each source by coefficients fitted without it",
    "shipped": "by the shipped coefficients, fitted to all sources",
    "none": "by the literature alone",
}
KINDS = {"first_token": "time to first token", "next_token": "time per token"}
MOST_REASONS = 12


def serving_validation_view(found: ServingValidation) -> Group:
    """One line per metric, one per source, then what could not be judged."""
    how = WORDS.get(found.calibration, f"by {found.calibration}")
    table = FittedTable(title=f"Serving, predicted against published, {how}")
    table.add_column("", min_width=28)
    for title in ("rows", "median", "p90", "bias", "inside 80 %", "by source"):
        table.add_column(title, justify="right")
    for name, errors in found.by_metric.items():
        kind, _, models = name.partition(" ")
        table.add_row(f"{KINDS.get(kind, kind)}, {models}", *_cells(errors))
    table.add_section()
    for source, errors in found.by_source.items():
        table.add_row(source, *_cells(errors))
    whole = found.overall
    unjudged = f"{whole.refused} refused, {whole.insufficient} insufficient"
    lines = [f"{whole.ok} of {whole.rows} rows judged; {unjudged}"]
    reasons = Counter((row.status, row.reason) for row in found.rows if row.status != "ok")
    for (status, reason), count in reasons.most_common(MOST_REASONS):
        lines.append(f"{count} x {status}: {reason}")
    return Group(table, *(Text(line) for line in lines))


def _cells(errors: ServingErrors) -> list[str]:
    return [
        str(errors.rows),
        _share(errors.median),
        _share(errors.p90),
        "" if errors.bias is None else f"{errors.bias:+.1%}",
        "" if errors.coverage is None else f"{errors.coverage:.0%}",
        _share(errors.mean_of_sources),
    ]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
