"""`ridgeline predict training` says what one layout of a training run will need and take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.forecast_options import (
    DomainSize,
    GlobalBatch,
    Model,
    Network,
    Oversubscription,
    SequenceLength,
    Software,
    cluster_of,
)
from ridgeline.cli.output_options import Html, Json
from ridgeline.errors import InputError
from ridgeline.records.layout import Offload, Precision, Recompute, Schedule


def predict_training(
    model: Model,
    cluster: Annotated[
        str, typer.Option(metavar="COUNTxDEVICE", help="Count and device, such as 64xH100.")
    ],
    global_batch: GlobalBatch,
    seq: SequenceLength = None,
    micro_batch: Annotated[int, typer.Option(help="Sequences in one pass of one rank.")] = 1,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks.")] = 1,
    sp: Annotated[
        bool | None, typer.Option("--sp/--no-sp", help="Sequence parallelism; default: with --tp.")
    ] = None,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    vpp: Annotated[int, typer.Option(help="Model chunks per pipeline rank.")] = 1,
    schedule: Annotated[
        Schedule | None, typer.Option(help="The pipeline's. Default: 1f1b, or as --vpp needs it.")
    ] = None,
    cp: Annotated[int, typer.Option(help="Context-parallel ranks.")] = 1,
    ep: Annotated[int, typer.Option(help="Expert-parallel ranks.")] = 1,
    etp: Annotated[int, typer.Option(help="Tensor-parallel ranks inside an expert.")] = 1,
    zero: Annotated[
        int | None,
        typer.Option(help="What is sharded: 0 to 3 (3 is FSDP). Default: 3, with --pp 1."),
    ] = None,
    fsdp: Annotated[
        int | None, typer.Option(help="Ranks that shard; default: all data-parallel ones.")
    ] = None,
    recompute: Annotated[Recompute, typer.Option(help="What the backward pass redoes.")] = "none",
    precision: Annotated[
        Precision, typer.Option(help="The number format of matrix multiplications.")
    ] = "bf16",
    offload: Annotated[Offload, typer.Option(help="What waits in the host's memory.")] = "none",
    compiled: Annotated[
        bool, typer.Option("--compile/--eager", help="Whether element-wise chains are fused.")
    ] = True,
    software: Software = "torch",
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN.json", help="Measured steps of your own, one to three."),
    ] = None,
    domain_size: DomainSize = None,
    network: Network = None,
    oversubscription: Oversubscription = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Step time, memory by stage, where the time goes, and how sure that is."""
    import msgspec

    from ridgeline.cli.show import print_document, print_json, write_page
    from ridgeline.cost.pipeline_schedule import timeline_of
    from ridgeline.plan.training import estimate
    from ridgeline.records.layout import Layout
    from ridgeline.report.views.predict_training import estimate_document

    place = cluster_of(cluster, domain_size, network, oversubscription)
    if min(tp, pp, cp) < 1:
        raise InputError("--tp, --pp and --cp must be 1 or more")
    ranks = place.num_devices // (tp * pp * cp)
    if not ranks or ranks * tp * pp * cp != place.num_devices:
        raise InputError(
            f"tp {tp} x pp {pp} x cp {cp} = {tp * pp * cp} does not divide the"
            f" {place.num_devices} devices of --cluster; change one"
        )
    stage = zero if zero is not None else _usual_zero(ranks * cp, pp)
    values = {
        "dp": ranks,
        "fsdp": fsdp if fsdp is not None else (ranks * cp if stage else 1),
        "zero": stage,
        "tp": tp,
        "sp": tp > 1 if sp is None else sp,
        "pp": pp,
        "vpp": vpp,
        "schedule": schedule or ("interleaved" if vpp > 1 else "1f1b"),
        "cp": cp,
        "ep": ep,
        "etp": etp,
        "micro_batch": micro_batch,
        "global_batch": global_batch,
        "recompute": recompute,
        "precision": precision,
        "offload": offload,
        "compiled": compiled,
    }
    try:
        layout = msgspec.convert(values, Layout)
    except msgspec.ValidationError as error:
        raise InputError(f"layout: {error}") from None
    found = estimate.predict_training(
        model, place, seq=seq, layout=layout, software=software, measured=calibrate or ()
    )
    title = f"{model} on {cluster}"
    document = estimate_document([found], title=title, timeline=timeline_of(found))
    if html is not None:
        write_page("--html", html, document)
    if json:
        print_json(found)
    else:
        print_document(document)


def _usual_zero(ranks: int, pp: int) -> int:
    """Fully sharded without a pipeline, the optimizer alone with one."""
    if ranks == 1:
        return 0
    return 3 if pp == 1 else 1
