"""`ridgeline validate serving TABLE.csv`: predicted against published serving runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def validate_serving(
    table: Annotated[Path, typer.Argument(metavar="TABLE.csv", help="Published runs, one a row.")],
    calibration: Annotated[
        str,
        typer.Option(
            metavar="unseen|shipped|none|FILE",
            help="Coefficients: unseen (fitted without the row's source), shipped (to all sources),"
            " none (the literature alone), or a calibration file.",
        ),
    ] = "unseen",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """How far predictions of serving are from published runs, by metric and by source."""
    from ridgeline.cli.show import print_json, print_view
    from ridgeline.plan.serving.validate import validate_serving as validate

    found = validate(table, calibration=calibration)
    if json:
        print_json(found)
        return
    from ridgeline.report.serving_validation import serving_validation_view

    print_view(serving_validation_view(found))
