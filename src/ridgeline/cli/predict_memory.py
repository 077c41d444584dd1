"""`ridgeline predict memory` says what is alive on a device at each moment of a training step."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ridgeline.cli.forecast_options import (
    ClusterOptions,
    GlobalBatch,
    Model,
    SequenceLength,
    Software,
    TrainedOptions,
)
from ridgeline.cli.option_groups import needed
from ridgeline.cli.show import Html, Json


def predict_memory(
    *,
    model: Model,
    cluster: Annotated[
        str, typer.Option(metavar="COUNTxDEVICE", help="Count and device, as 8xH100.")
    ],
    global_batch: GlobalBatch = None,
    micro_batch: Annotated[int, typer.Option(help="Sequences in one pass of one rank.")] = 1,
    seq: SequenceLength = None,
    checkpoint: Annotated[
        Literal["none", "selective", "full", "sqrt"],
        typer.Option(help="Activations that are redone; sqrt redoes segments of √layers."),
    ] = "none",
    zero: Annotated[
        int | None, typer.Option(help="What is sharded: 0 to 3. Default: 3, with --pp 1.")
    ] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    precision: Annotated[str, typer.Option(help="Number format of matmuls.")] = "bf16",
    software: Software = "torch",
    trained: TrainedOptions,
    fabric: ClusterOptions,
    html: Html = None,
    json: Json = False,
) -> None:
    """Memory of one device over a training step, by category, and where its peak lies."""
    from ridgeline.cli.show import show_answer
    from ridgeline.plan.training import memory_curve
    from ridgeline.plan.training.filled_layout import filled_layout
    from ridgeline.report.views.memory_curve import memory_curve_document

    place = fabric.cluster(cluster)
    layout = filled_layout(
        place,
        tp=tp,
        pp=pp,
        zero=zero,
        micro_batch=micro_batch,
        global_batch=needed("--global-batch", global_batch),
        precision=precision,
    )
    found = memory_curve.predict_memory(
        model,
        place,
        layout=layout,
        checkpoint=checkpoint,
        seq=seq,
        software=software,
        trained=trained.trained(),
    )
    show_answer(found, memory_curve_document(found), json=json, html=html)
