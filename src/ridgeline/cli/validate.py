"""`ridgeline validate training|serving|vision TABLE.csv`: predictions against published runs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ridgeline.cli.forecast_options import PublishedTable
from ridgeline.cli.show import Json


def validate_training(
    table: PublishedTable,
    calibration: Annotated[
        str,
        typer.Option(
            metavar="none|shipped|FILE",
            help="Coefficients: shipped, none (the literature alone), or a calibration file.",
        ),
    ] = "shipped",
    json: Json = False,
) -> None:
    """How far the cost model is from published runs, by source and over all."""
    from ridgeline.cli.show import show_answer
    from ridgeline.plan.training.validate import validate_training as validate

    found = validate(table, calibration=calibration)
    from ridgeline.report.views.validate import training_validation_document

    show_answer(found, training_validation_document(found), json=json)


def validate_serving(
    table: PublishedTable,
    calibration: Annotated[
        str,
        typer.Option(
            metavar="unseen|shipped|none|FILE",
            help="Coefficients: unseen (fitted without the row's source), shipped (to all sources),"
            " none (the literature alone), or a calibration file.",
        ),
    ] = "unseen",
    json: Json = False,
) -> None:
    """How far predictions of serving are from published runs, by metric and by source."""
    from ridgeline.cli.show import show_answer
    from ridgeline.plan.serving.validate import validate_serving as validate

    found = validate(table, calibration=calibration)
    from ridgeline.report.views.validate import serving_validation_document

    show_answer(found, serving_validation_document(found), json=json)


def validate_vision(
    table: PublishedTable,
    calibration: Annotated[
        Literal["unseen", "shipped", "none"],
        typer.Option(
            help="Coefficients: unseen (fitted without the row's device, and without its family),"
            " shipped (to all rows), none (the priors alone).",
        ),
    ] = "unseen",
    json: Json = False,
) -> None:
    """How far predictions of vision models are from published runs."""
    from ridgeline.cli.show import show_answer
    from ridgeline.plan.vision.validate import validate_vision as validate

    found = validate(table, calibration=calibration)
    from ridgeline.report.views.validate import vision_validation_document

    show_answer(found, vision_validation_document(found), json=json)
