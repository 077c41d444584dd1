"""`ridgeline roofline MODEL --device D`: every operator of a model under the roofs of devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ridgeline.errors import InputError


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
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page with the plots.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """What bounds each operator of a model, and the least time it can take."""
    from ridgeline.plan.model_roofline import model_roofline

    roof = model_roofline(model, device, batch=batch, seq=seq, phase=phase)  # type: ignore[arg-type]
    if html is not None:
        from ridgeline.records.store import write_atomically
        from ridgeline.report.roofline_page import roofline_page

        try:
            write_atomically(html, roofline_page(roof).encode())
        except OSError as error:
            raise InputError(f"--html {html}: {error.strerror or error}") from None
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(roof), indent=1).decode())
        return
    from rich.console import Console

    from ridgeline.report.roofline_terminal import roofline_view

    Console().print(roofline_view(roof))
