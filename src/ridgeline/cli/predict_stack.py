"""`ridgeline predict stack LEDGER` switches rows of a proven stack off, and says what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.show import Html, Json


def predict_stack(
    ledger: Annotated[
        Path, typer.Argument(metavar="LEDGER", help="The ledger.json of `ridgeline tune`.")
    ],
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="TECHNIQUE", help="Leave this row out; repeatable."),
    ] = None,
    steps_to_train: Annotated[
        float | None,
        typer.Option(metavar="N", help="Steps of the whole run. Default: as the ledger says."),
    ] = None,
    usd_per_hour: Annotated[
        float | None,
        typer.Option(
            metavar="USD", help="Price of the machines per hour. Default: as the ledger says."
        ),
    ] = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Step time, memory, run and cost of a proven stack, with rows of it left out."""
    from ridgeline.cli.show import show_answer
    from ridgeline.plan.stack_forecast import forecast_stack
    from ridgeline.report.views.stack_forecast import stack_forecast_document

    found = forecast_stack(
        ledger,
        without=without or [],
        steps_to_train=steps_to_train,
        usd_per_hour=usd_per_hour,
    )
    show_answer(found, stack_forecast_document(found), json=json, html=html)
