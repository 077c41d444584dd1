"""What every `ridgeline trace` command takes, and how it asks: ranks in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from ridgeline.cli.show import output_file, progress, say, told
from ridgeline.trace.columns import Trace
from ridgeline.trace.load import for_each_rank, trace_files

Answer = TypeVar("Answer")

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILES…", help="Traces, folders of ranks, or globs in quotes."),
]
Window = Annotated[
    Literal["trace", "steps", "span"],
    typer.Option(
        help="The part of the trace: the GPU's work, whole profiler steps, or the work of host and"
        " GPU."
    ),
]
Top = Annotated[int, typer.Option(min=1, help="How many rows to show.")]
Cache = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep parsed traces here, and read them from here."),
]


Out = Annotated[
    Path | None,
    output_file("TABLE.csv|.parquet", "Also write the answer as a table, a row per record."),
]


def named_files(files: list[str]) -> list[Path]:
    """The files that will be asked; `ask` tells what is left out of folders."""
    return trace_files(files, tell=lambda line: None)  # noqa: ARG005


def ask(
    files: list[str],
    question: Callable[[Trace], Answer],
    *,
    details: bool = False,
    cache: Path | None = None,
) -> list[Answer]:
    """The answer to a question about each trace, one per file, in the order of the files."""
    paths = trace_files(files, tell=lambda line: say(line, err=True))
    with progress() as report_progress:
        if len(paths) > 1:
            report_progress(f"reading {len(paths)} traces")
        return list(for_each_rank(paths, question, details=details, cache=cache))


def check_out(out: Path | None, files: list[str]) -> None:
    """Refuse a table that overwrites a trace or could not be written, before traces are read."""
    if out is None:
        return
    from ridgeline.report.table_file import check_table_file

    trace_files(files)
    check_table_file(out)


def write_rows(
    out: Path | None, kind: type, records: Sequence[Any], rows: str = "", *, json: bool
) -> None:
    """What `--out` asks for: the records of an answer, or the members of their list, as a table."""
    if out is None:
        return
    from ridgeline.report.table_file import write_table

    with told("--out", out):
        count = write_table(out, kind, records, rows)
    if not json:
        typer.echo(f"{out}: {count} rows")
