"""`ridgeline roofline MODEL --device D`: every operator of a model under the roofs of devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ridgeline.cli.forecast_options import Inputs
from ridgeline.cli.show import Html, Json


def roofline(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A preset, a config.json, sizes as layers=…,hidden=…; for images also"
            " timm:NAME, torchvision:NAME, hf:FOLDER, script.py:FUNCTION or a .pt2 file.",
        ),
    ],
    device: Annotated[
        list[str],
        typer.Option("--device", metavar="DEVICE", help="A device; repeatable."),
    ],
    batch: Annotated[int, typer.Option(help="Sequences or images in a batch.")] = 1,
    seq: Annotated[
        int | None,
        typer.Option(help="Tokens of each; in decode, already cached. Default: 4096 or the most."),
    ] = None,
    phase: Annotated[
        Literal["train", "prefill", "decode"], typer.Option(help="What the model does.")
    ] = "train",
    image: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Side of the images, or height and width as 480x640."),
    ] = None,
    inputs: Inputs = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Lay a measured step over it: what `ridgeline doctor` or `tune` wrote.",
        ),
    ] = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """What bounds each operator of a model, and the least time it can take."""
    from ridgeline.cli.show import show_answer
    from ridgeline.errors import InputError
    from ridgeline.measure.network.source import is_vision, read_image_size, read_network
    from ridgeline.plan.model_roofline import model_roofline
    from ridgeline.report.views.roofline import roofline_document

    size = read_image_size(image)
    seen = read_network(model, size, inputs) if is_vision(model) else None
    for option, given in (("--image", size), ("--inputs", inputs)):
        if given is not None and seen is None:
            raise InputError(f"{option}: {model} is no vision network; leave it out")
    roof = model_roofline(
        seen or model, device, batch=batch, seq=seq, phase=phase, measured=measured
    )
    document = roofline_document(roof)
    show_answer(roof, document, json=json, html=html)
