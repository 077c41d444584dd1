"""`ridgeline roofline MODEL --device D`: every operator of a model under the roofs of devices."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.output_options import Html, Json


def roofline(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A preset, a config.json, sizes as layers=…,hidden=…, or a CNN."
        ),
    ],
    device: Annotated[
        list[str], typer.Option("--device", metavar="NAME", help="May be given several times.")
    ],
    batch: Annotated[int, typer.Option(help="Sequences, or images.")] = 1,
    seq: Annotated[
        int | None,
        typer.Option(help="Tokens of each; in decode, already cached. Default: 4096 or the most."),
    ] = None,
    phase: Annotated[str, typer.Option(help="train, prefill or decode.")] = "train",
    html: Html = None,
    json: Json = False,
) -> None:
    """What bounds each operator of a model, and the least time it can take."""
    from ridgeline.cli.show import print_json, print_view, write_text
    from ridgeline.plan.model_roofline import model_roofline

    roof = model_roofline(model, device, batch=batch, seq=seq, phase=phase)  # type: ignore[arg-type]
    if html is not None:
        from ridgeline.report.roofline_page import roofline_page

        write_text("--html", html, roofline_page(roof))
    if json:
        print_json(roof)
        return
    from ridgeline.report.roofline_terminal import roofline_view

    print_view(roofline_view(roof))
