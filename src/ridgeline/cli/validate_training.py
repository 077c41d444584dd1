"""`ridgeline validate training TABLE.csv`: predicted against published training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def validate_training(
    table: Annotated[Path, typer.Argument(metavar="TABLE.csv", help="Published runs, one a row.")],
    calibration: Annotated[
        str,
        typer.Option(
            metavar="none|shipped|FILE",
            help="Coefficients: shipped, none (the literature alone), or a calibration file.",
        ),
    ] = "shipped",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """How far the cost model is from published runs, by source and over all."""
    from ridgeline.cli.show import print_json, print_view
    from ridgeline.plan.validate import validate_training as validate

    found = validate(table, calibration=calibration)
    if json:
        print_json(found)
        return
    from ridgeline.report.validation import validation_view

    print_view(validation_view(found))
