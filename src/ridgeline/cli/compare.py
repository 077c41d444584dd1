"""`ridgeline compare A.json B.json`: is the new run slower than the reference? Exit 3 if so."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ridgeline.cli.show import Json, output_file, print_document, print_json, write_text
from ridgeline.errors import InputError, Regression
from ridgeline.measure.compare import history as histories
from ridgeline.measure.compare.comparison import Comparison, compare_runs
from ridgeline.measure.compare.history import HistoryVerdict
from ridgeline.measure.compare.runs import read_run
from ridgeline.measure.statistics.metric import parse_metric
from ridgeline.report.markdown import draw_markdown
from ridgeline.report.views.compare import (
    comparison_document,
    headline,
    history_headline,
    reason,
)

STDOUT = Path("-")


class _Answer(
    Comparison,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="record",
    tag="comparison",
):
    """The document of `--json`: the comparison, and the history's verdict where one is kept."""

    history: HistoryVerdict | None


def compare(
    reference: Annotated[
        Path, typer.Argument(metavar="A.json", help="The earlier run, which B is compared with.")
    ],
    new: Annotated[Path, typer.Argument(metavar="B.json", help="The later run, which is judged.")],
    threshold: Annotated[
        float,
        typer.Option(help="Smallest slowdown that matters, beyond noise: 0.02 is 2 %."),
    ] = 0.02,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="FIGURE",
            help="Judge by this alone: median, mean, a percentile (p99) or p99/p50.",
        ),
    ] = None,
    json: Json = False,
    markdown: Annotated[
        Path | None, output_file("FILE", "Write Markdown for a CI comment; - for stdout.")
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append B to this history and look for drifts in it."),
    ] = None,
) -> None:
    """Is B slower than A beyond noise? Exit 3 if it is.

    A and B are what doctor, tune, train, bench decode, loadtest, compress, evaluate, export,
    realtime run, tune and simulate, simulate serving, or queue simulate wrote; or single times of
    pytest-benchmark, hyperfine, vllm bench serve, aiperf, or a CSV with a column step_time.
    """
    if json and markdown == STDOUT:
        raise InputError("--json and --markdown - both write to stdout; give --markdown a file")
    judged_by = None if metric is None else parse_metric(metric)
    new_run = read_run(new)
    comparison = compare_runs(read_run(reference), new_run, threshold=threshold, metric=judged_by)
    judged: HistoryVerdict | None = None
    if history is not None:
        histories.append(history, histories.entry_of(new_run))
        judged = histories.judge(history, threshold=threshold)
    document = comparison_document(comparison, judged)
    if markdown == STDOUT:
        typer.echo(draw_markdown(document), nl=False)
    elif markdown is not None:
        write_text("--markdown", markdown, draw_markdown(document))
    if json:
        print_json(_Answer(history=judged, **msgspec.structs.asdict(comparison)))
    elif markdown != STDOUT:
        print_document(document)
    _raise_regression(comparison, judged)


def _raise_regression(comparison: Comparison, history: HistoryVerdict | None) -> None:
    if comparison.verdict == "slower":
        cause = reason(comparison)
        message = f"{comparison.new.source} is {headline(comparison)}"
        raise Regression(message if cause is None else f"{message}; {cause}")
    if history is not None and history.first_bad is not None:
        raise Regression(history_headline(history))
