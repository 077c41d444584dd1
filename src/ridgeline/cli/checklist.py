"""The command `ridgeline checklist` answers the field's boxes from what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.show import Html, Json


def checklist(
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="training|inference|distributed|launch…", help="Groups of boxes. Default: all."
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="RUN.json", help="What `doctor --out` wrote.")
    ] = None,
    trace: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Profiler traces of the job; repeatable."),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="A recipe of `train`.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(metavar="LEDGER.json", help="What `tune` proved.")
    ] = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Boxes of a performance review: done, not done, not applicable, unknown; each with evidence.

    A box that no record answers is unknown, with the command that finds out.
    """
    from ridgeline.cli.show import show_answer
    from ridgeline.diagnose.checklist import checklist as answered
    from ridgeline.diagnose.checklist import read_evidence
    from ridgeline.diagnose.checklist.boxes import boxes
    from ridgeline.report.views.checklist import checklist_document

    asked = list(dict.fromkeys(groups or []))
    for group in asked:
        boxes(group)
    evidence = read_evidence(profile=profile, traces=trace or [], recipe=recipe, ledger=ledger)
    found = answered(asked, evidence)
    show_answer(found, checklist_document(found), json=json, html=html)
