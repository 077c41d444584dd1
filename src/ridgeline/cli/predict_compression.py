"""`ridgeline predict compression` puts measured schemes side by side and foretells others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ridgeline.cli.durations import parse_share
from ridgeline.cli.show import Html, Json

if TYPE_CHECKING:
    from ridgeline.records.compression_front import PointKind


def predict_compression(
    ledgers: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="LEDGER.json…",
            help="What `ridgeline compress` wrote. Default: ledgers of the example model.",
        ),
    ] = None,
    scheme: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Foretell this scheme from a measured one; repeatable."),
    ] = None,
    kind: Annotated[
        str, typer.Option(metavar="KIND,…", help="What is shown: bits, zeros, smaller.")
    ] = "bits,zeros,smaller",
    max_rise: Annotated[
        float,
        typer.Option(
            parser=parse_share, metavar="SHARE", help="What the perplexity may rise by, as 1%."
        ),
    ] = 0.01,
    html: Html = None,
    json: Json = False,
) -> None:
    """Size, quality and speed of one model under many schemes: which are best for their size."""
    from ridgeline.cli.show import show_answer
    from ridgeline.errors import InputError
    from ridgeline.plan.compression_front import EVERY_KIND, compression_front
    from ridgeline.report.views.compression_front import compression_front_document

    kinds = kind.split(",")
    for one in kinds:
        if one not in EVERY_KIND:
            raise InputError(f"--kind {one}: it must be of {', '.join(EVERY_KIND)}")
    found = compression_front(
        ledgers or [],
        schemes=scheme or [],
        kinds=cast("list[PointKind]", kinds),
        most_rise=max_rise,
    )
    show_answer(found, compression_front_document(found), json=json, html=html)
