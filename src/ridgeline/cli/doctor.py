"""`ridgeline doctor -- script.py args…`: where the time goes, what bounds it, ranked cures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ridgeline.diagnose.doctor import Examination


def doctor(
    command: Annotated[list[str], typer.Argument(metavar="-- SCRIPT [ARGS]…")],
    steps: Annotated[int, typer.Option(help="Steps to time.")] = 40,
    warmup: Annotated[
        int | None,
        typer.Option(help="Steps before them; without it, until the step time is steady."),
    ] = None,
    budget: Annotated[
        float, typer.Option(help="Wall seconds in all; fewer steps are timed if need be.")
    ] = 120.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Also write that document here.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write a page to look at.")
    ] = None,
) -> None:
    """Examine an unmodified script: where its time goes, what bounds it, what is worth doing."""
    from ridgeline.cli.show import print_json, print_view, progress
    from ridgeline.diagnose.doctor import doctor as examine
    from ridgeline.measure.command import resolve
    from ridgeline.measure.profile import Plan
    from ridgeline.report.terminal import profile_view

    plan = Plan(steps=steps, warmup=warmup, budget_seconds=budget)
    resolve(command)
    with progress() as say:
        examination = examine(command, plan, progress=say)
    if out is not None or report is not None:
        _write(examination, out, report)
    if json:
        print_json(examination)
    else:
        print_view(profile_view(examination.profile, examination.findings, examination.verdict))


def _write(examination: Examination, out: Path | None, report: Path | None) -> None:
    from ridgeline.errors import InputError
    from ridgeline.records.store import write_record
    from ridgeline.report.html import write_profile_report

    path = out
    try:
        if out is not None:
            write_record(out, examination)
        path = report
        if report is not None:
            write_profile_report(
                report, examination.profile, examination.findings, examination.verdict
            )
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
