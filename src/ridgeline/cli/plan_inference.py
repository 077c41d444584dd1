"""`ridgeline plan inference` says what should run a network for images, and how many of it."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.durations import duration_option
from ridgeline.cli.forecast_options import (
    ImageSize,
    Inputs,
    Model,
    amount_of,
    image_size_of,
)
from ridgeline.cli.predict_inference import checked_network
from ridgeline.cli.show import Html, Json


def plan_inference(
    model: Model,
    rate: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Images per second, as 20k: adds cost.")
    ] = None,
    deadline: Annotated[
        float | None, duration_option("The time within which an image is answered.")
    ] = None,
    image: ImageSize = None,
    inputs: Inputs = None,
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="DEVICE", help="A device to allow; repeatable. Default: all."),
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            metavar="fp32|tf32|bf16|fp16|int8",
            help="A precision to allow; repeatable. Default: all.",
        ),
    ] = None,
    software: Annotated[
        list[str] | None,
        typer.Option(help="What runs it: eager, compile, tensorrt, …; repeatable. Default: these."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Images of one call; repeatable. Default: 1 to 128."),
    ] = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """The cheapest way to answer a rate of images, or the soonest, on every device."""
    from ridgeline.cli.show import show_answer
    from ridgeline.plan.vision.search_inference import plan_vision_inference
    from ridgeline.report.views.vision_plan import vision_inference_plan_document

    network = checked_network(model, image, inputs, "ridgeline plan serving")
    found = plan_vision_inference(
        network,
        rate=None if rate is None else amount_of("--rate", rate),
        deadline_seconds=deadline,
        image_size=image_size_of(image),
        devices=device or (),
        precisions=precision or (),
        software=software or (),
        batches=batch or (),
    )
    document = vision_inference_plan_document(found)
    show_answer(found, document, json=json, html=html)
