"""`ridgeline predict inference` says how long a network for images takes, and what bounds it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.durations import duration_option
from ridgeline.cli.forecast_options import (
    ImageSize,
    Inputs,
    MemoryFormat,
    Model,
    Precision,
    RuntimeName,
    Threads,
    image_size_of,
    measured_images,
    network_seen,
)
from ridgeline.cli.show import Html, Json
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.models.vision.network import VisionNetwork


def predict_inference(
    model: Model,
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE", help="A device such as T4 or orin; see `ridgeline hardware --list`."
        ),
    ],
    batch: Annotated[int, typer.Option(help="Images of one call.")] = 1,
    batches: Annotated[
        str | None,
        typer.Option(
            metavar="1,2,4,…", help="Each of these batches, for --software A,B: where is the knee?"
        ),
    ] = None,
    image: ImageSize = None,
    inputs: Inputs = None,
    precision: Annotated[
        Precision | None,
        typer.Option(
            help="Number format of weights and activations. Default: 16 bits where there are any.",
        ),
    ] = None,
    memory_format: MemoryFormat = None,
    software: RuntimeName = "eager",
    threads: Threads = None,
    period: Annotated[
        float | None, duration_option("Time between two frames: is it met, by how much?")
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN.json", help="Times of your own on this device, one to three in a file."
        ),
    ] = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Latency and throughput of a network for images, what bounds it, what would change it."""
    from ridgeline.cli.show import show_answer
    from ridgeline.plan.vision.inference import predict_vision_inference
    from ridgeline.report.views.vision import vision_inference_document

    network = checked_network(model, image, inputs, "ridgeline predict serving")
    if batches is not None:
        from ridgeline.plan.vision.batches import batch_curves
        from ridgeline.report.views.batch_curve import batch_curves_document

        curves = batch_curves(
            network,
            device,
            _numbers(batches),
            software=software.split(","),
            image_size=image_size_of(image),
            precision=precision,
            memory_format=memory_format or "contiguous",
            threads=threads,
            within_seconds=period,
            measured=measured_images(measured or ()),
        )
        show_answer(curves, batch_curves_document(curves), json=json, html=html)
        return
    found = predict_vision_inference(
        network,
        device,
        batch=batch,
        image_size=image_size_of(image),
        precision=precision,
        memory_format=memory_format or "contiguous",
        software=software,
        threads=threads,
        period_seconds=period,
        measured=measured_images(measured or ()),
    )
    document = vision_inference_document(found)
    show_answer(found, document, json=json, html=html)


def _numbers(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise InputError(f"--batches {text}: write numbers of images with commas, as 1,8,64")
    return [int(word) for word in words]


def checked_network(
    model: str, image: str | None, inputs: Path | None, instead: str
) -> str | VisionNetwork:
    """The network for images that is meant; a model of tokens is sent to the command for it.

    Raises:
        InputError: The model is none for images, or is unknown.
    """
    from ridgeline.plan.vision.question import check_known

    network = network_seen(model, image, inputs)
    if network is None:
        name = check_known(model).name
        raise InputError(f"{name} is no network for images; language models: {instead}")
    return network
