"""`ridgeline predict scaling` says how long a whole run takes on more and more devices."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.forecast_options import (
    ClusterOptions,
    Epochs,
    Images,
    Model,
    SequenceLength,
    amount_of,
    of_images,
    of_tokens,
)
from ridgeline.cli.option_groups import refuse_typed
from ridgeline.cli.show import Html, Json
from ridgeline.errors import InputError
from ridgeline.records.layout import Recompute

_OTHER = "leave it out"
OF_TOKENS = dict.fromkeys(
    ("tokens", "global_batch", "micro_batch", "seq", "tp", "pp", "zero", "recompute"), _OTHER
)
OF_IMAGES = dict.fromkeys(("images", "epochs", "batch"), _OTHER)


def predict_scaling(
    context: typer.Context,
    *,
    model: Model,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="A device such as H100.")],
    devices: Annotated[
        str, typer.Option(metavar="COUNTS", help="Numbers of devices, with commas between them.")
    ] = "8,16,32,64,128,256,512,1024",
    overlap: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of the backward under which gradients travel. Default: as published runs.",
        ),
    ] = None,
    tokens: Annotated[str, of_tokens(help="Tokens of the whole run.")] = "300B",
    global_batch: Annotated[int, of_tokens(help="Sequences in one step.")] = 1024,
    micro_batch: Annotated[int, of_tokens(help="Sequences in one pass.")] = 1,
    seq: SequenceLength = None,
    tp: Annotated[int, of_tokens(help="Tensor-parallel ranks.")] = 1,
    pp: Annotated[int, of_tokens(help="Pipeline stages.")] = 1,
    zero: Annotated[
        int | None, of_tokens(help="What is sharded: 0 to 3. Default: 3, with --pp 1.")
    ] = None,
    recompute: Annotated[Recompute, of_tokens(help="What the backward redoes.")] = "none",
    images: Images = None,
    epochs: Epochs = None,
    batch: Annotated[int, of_images(help="Images of one device in one step.")] = 256,
    fabric: ClusterOptions,
    html: Html = None,
    json: Json = False,
) -> None:
    """Training time against the number of devices, real against ideal, with published runs.

    Language models keep their global batch, networks for images the batch of each device.
    """
    from ridgeline.cli.show import show_answer
    from ridgeline.plan import scaling_forecast as plan
    from ridgeline.plan.vision.question import vision_name
    from ridgeline.report.views.scaling_forecast import scaling_document

    place = fabric.cluster(f"1x{device}")
    run: plan.TokenRun | plan.ImageRun
    if vision_name(model) is not None:
        refuse_typed(context, OF_TOKENS, f"{model} looks at images")
        run = plan.ImageRun(
            images=plan.IMAGENET_IMAGES if images is None else amount_of("--images", images),
            epochs=plan.USUAL_EPOCHS if epochs is None else epochs,
            batch=batch,
        )
    else:
        refuse_typed(context, OF_IMAGES, f"{model} is no network for images")
        run = plan.TokenRun(
            tokens=amount_of("--tokens", tokens),
            global_batch=global_batch,
            micro_batch=micro_batch,
            seq=seq,
            tp=tp,
            pp=pp,
            zero=zero,
            recompute=recompute,
        )
    found = plan.predict_scaling(model, place, _counts(devices), run, overlap=overlap)
    show_answer(found, scaling_document(found), json=json, html=html)


def _counts(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(f"--devices {text}: give whole numbers with commas, as 8,64,512")
    return [int(part) for part in parts]
