"""`ridgeline predict system` says what the parts of a perception system cost and wait for."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ridgeline.cli.durations import duration_option
from ridgeline.cli.forecast_options import amount_of
from ridgeline.cli.show import Html, Json


def predict_system(
    model: Annotated[
        str, typer.Option(help="A network for images: resnet50, vit_base_patch16_224, ….")
    ],
    cluster: Annotated[
        str, typer.Option(metavar="COUNTxDEVICE", help="Where it is trained and served.")
    ],
    vehicle: Annotated[
        str, typer.Option(metavar="DEVICE", help="The device that it ends on, such as orin.")
    ],
    batch: Annotated[int, typer.Option(help="Images of one device in one step.")] = 256,
    images: Annotated[str, typer.Option(help="Images of one epoch.")] = "1281167",
    epochs: Annotated[float, typer.Option(help="Passes over them.")] = 90.0,
    cores_per_device: Annotated[
        float, typer.Option(help="Processor cores that decode images, for each device.")
    ] = 12.0,
    period: Annotated[float, duration_option("Time between two frames.")] = 0.033,
    precision: Annotated[
        Literal["fp32", "fp16", "int8"], typer.Option(help="The vehicle's arithmetic.")
    ] = "fp16",
    part: Annotated[
        Literal["data", "training", "compression", "serving", "vehicle"],
        typer.Option(help="The part that is shown in full."),
    ] = "training",
    html: Html = None,
    json: Json = False,
) -> None:
    """Data, training, compression, serving and vehicle of one network: cost, limit, techniques."""
    from ridgeline.cli.show import show_answer
    from ridgeline.plan import system_map as plan
    from ridgeline.report.views.system_map import system_document

    found = plan.predict_system(
        plan.SystemQuestion(
            model=model,
            cluster=cluster,
            vehicle=vehicle,
            batch=batch,
            images=amount_of("--images", images),
            epochs=epochs,
            cores_per_device=cores_per_device,
            period_seconds=period,
            precision=precision,
            shown=part,
        )
    )
    show_answer(found, system_document(found), json=json, html=html)
