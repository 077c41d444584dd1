"""The error of the cost model by source, as a table for the terminal."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from ridgeline.records.validation import TrainingErrors, TrainingValidation
from ridgeline.report.fitted_table import FittedTable


def training_validation_view(found: TrainingValidation) -> Group:
    """One line per source, then the averages, then what could not be judged."""
    table = FittedTable(
        title=f"Step time, predicted against published ({found.calibration} calibration)"
    )
    table.add_column("source")
    for title in ("rows", "median", "p90", "bias", "inside 80 %", "memory"):
        table.add_column(title, justify="right")
    for source, summary in found.by_source.items():
        table.add_row(source, *_cells(summary))
    table.add_section()
    whole = found.overall
    table.add_row("dense models, mean of sources", *_cells(whole.dense))
    table.add_row("mixtures of experts, mean of sources", *_cells(whole.experts))
    judged = f"{whole.ok} of {whole.rows} rows judged; {whole.refused} refused"
    memory = (
        f"peak memory: median error {_share(whole.memory_median)} over {whole.memory_rows} rows"
    )
    choice = f"choice of layout: {whole.regret_groups} comparisons, the one we would pick is"
    lines = [
        f"{judged}, {whole.insufficient} insufficient",
        f"{memory}; out of memory called right {whole.oom_right} of {whole.oom_rows} times",
        f"{choice} {_share(whole.regret_median)} slower than the best in the median",
    ]
    failed = [row for row in found.rows if row.status != "ok"]
    lines += [f"row {row.row} ({row.source}): {row.status}: {row.reason}" for row in failed[:20]]
    return Group(table, *(Text(line) for line in lines))


def _cells(summary: TrainingErrors) -> list[str]:
    bias = "" if summary.bias is None else f"{summary.bias:+.1%}"
    return [
        str(summary.rows),
        _share(summary.median),
        _share(summary.p90),
        bias,
        "" if summary.coverage is None else f"{summary.coverage:.0%}",
        _share(summary.memory_median),
    ]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
