"""`ridgeline predict training` says what one layout of a training run will need and take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.forecast_options import (
    ClusterOptions,
    Cores,
    DiskOptions,
    Epochs,
    GlobalBatch,
    Images,
    ImageSize,
    Inputs,
    MemoryFormat,
    Model,
    SequenceLength,
    Software,
    TrainedOptions,
    amount_of,
    image_size_of,
    measured_images,
    network_seen,
    of_images,
    of_tokens,
)
from ridgeline.cli.option_groups import needed, refuse_typed
from ridgeline.cli.show import Html, Json
from ridgeline.errors import InputError
from ridgeline.records.layout import Offload, Recompute, Schedule

if TYPE_CHECKING:
    from ridgeline.hardware.cluster import Cluster
    from ridgeline.models.vision.network import VisionNetwork
    from ridgeline.records.vision_estimate import VisionTrainingEstimate

_WHOLE = "every device holds the whole network; leave it out"
OF_TOKENS = {
    "seq": "--image gives the size of its images",
    **dict.fromkeys(
        ("tp", "sp", "pp", "vpp", "schedule", "cp", "ep", "etp", "zero", "fsdp", "offload"), _WHOLE
    ),
    **dict.fromkeys(("disk", "disk_bandwidth"), "nothing of it lies on disk; leave it out"),
    "recompute": "its activations are all kept; leave it out, or take a smaller --micro-batch",
    "recompute_every": "its activations are all kept; leave it out",
    "software": "--compile or --eager says what runs it",
    **dict.fromkeys(
        ("adapter", "adapter_rank", "adapter_targets", "weights"),
        "a network for images is trained whole; leave it out",
    ),
}
"""Options of language models → what to do in place of them."""
OF_IMAGES = {
    "batch": "--global-batch gives its sequences in one step",
    "image": "--seq gives the length of its sequences",
    **dict.fromkeys(("memory_format", "cores_per_device"), "leave it out"),
    **dict.fromkeys(("images", "epochs"), "plan training --tokens says what a whole run takes"),
}
"""Options of networks for images, likewise."""


def predict_training(
    context: typer.Context,
    *,
    model: Model,
    cluster: Annotated[
        str | None, typer.Option(metavar="COUNTxDEVICE", help="Count and device, as 64xH100.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="One device, in place of --cluster 1xDEVICE."),
    ] = None,
    global_batch: GlobalBatch = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(help="Sequences in one pass of one rank (1), or images (all of them)."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="The number format of matrix multiplications. Default: bf16, or what the device"
            " has of 16 bits; else fp32."
        ),
    ] = None,
    compiled: Annotated[
        bool | None,
        typer.Option(
            "--compile/--eager",
            help="Whether element-wise chains are fused. Default: yes; of images no.",
        ),
    ] = None,
    seq: SequenceLength = None,
    tp: Annotated[int, of_tokens(help="Tensor-parallel ranks.")] = 1,
    sp: Annotated[
        bool | None, of_tokens("--sp/--no-sp", help="Sequence parallelism; default: with --tp.")
    ] = None,
    pp: Annotated[int, of_tokens(help="Pipeline stages.")] = 1,
    vpp: Annotated[int, of_tokens(help="Model chunks per pipeline rank.")] = 1,
    schedule: Annotated[
        Schedule | None,
        of_tokens(help="The pipeline's schedule. Default: 1f1b, or as --vpp needs it."),
    ] = None,
    cp: Annotated[int, of_tokens(help="Context-parallel ranks.")] = 1,
    ep: Annotated[int, of_tokens(help="Expert-parallel ranks.")] = 1,
    etp: Annotated[int, of_tokens(help="Tensor-parallel ranks inside an expert.")] = 1,
    zero: Annotated[
        int | None, of_tokens(help="What is sharded: 0 to 3 (3 is FSDP). Default: 3, with --pp 1.")
    ] = None,
    fsdp: Annotated[
        int | None, of_tokens(help="Ranks that shard; default: all data-parallel ones.")
    ] = None,
    recompute: Annotated[
        Recompute,
        of_tokens(
            help="What the backward pass redoes. selective: of torch all but attention and every"
            " second matmul, of megatron the attention core."
        ),
    ] = "none",
    recompute_every: Annotated[
        int, of_tokens(help="With --recompute full: one layer in so many is recomputed.")
    ] = 1,
    offload: Annotated[
        Offload, of_tokens(help="What waits in the host's memory, or on disk.")
    ] = "none",
    disk: DiskOptions,
    software: Software = "torch",
    trained: TrainedOptions,
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(
            "--measured",
            "--calibrate",
            metavar="RUN.json",
            help="Measured steps of your own, one to three.",
        ),
    ] = None,
    batch: Annotated[int | None, of_images(help="Images of one device in one step.")] = None,
    image: ImageSize = None,
    inputs: Inputs = None,
    memory_format: MemoryFormat = None,
    images: Images = None,
    epochs: Epochs = None,
    cores_per_device: Cores = None,
    fabric: ClusterOptions,
    html: Html = None,
    json: Json = False,
) -> None:
    """Step time, memory by part, where the time goes, and how sure that is."""
    from ridgeline.plan.vision.question import check_known

    name = _cluster_name(cluster, device)
    place = fabric.cluster(name)
    seen = network_seen(model, image, inputs)
    if seen is not None:
        refuse_typed(context, OF_TOKENS, f"{model} looks at images")
        found = _of_images(
            seen,
            place,
            batch=_images_of_one_device(place, batch, global_batch),
            micro_batch=micro_batch,
            image_size=image_size_of(image),
            precision=precision,
            memory_format=memory_format or "contiguous",
            compiled=bool(compiled),
            optimizer=trained.optimizer or "sgd",
            images=None if images is None else amount_of("--images", images),
            epochs=1.0 if epochs is None else epochs,
            cores_per_device=cores_per_device,
            measured=measured_images(calibrate or ()),
        )
        _show_images(found, html, json)
        return
    check_known(model)
    refuse_typed(context, OF_IMAGES, f"{model} is no network for images")
    from ridgeline.plan.training.filled_layout import filled_layout

    place = disk.on(place, offload)
    layout = filled_layout(
        place,
        tp=tp,
        pp=pp,
        cp=cp,
        zero=zero,
        fsdp=fsdp,
        sp=sp,
        vpp=vpp,
        schedule=schedule,
        ep=ep,
        etp=etp,
        micro_batch=1 if micro_batch is None else micro_batch,
        global_batch=needed("--global-batch", global_batch),
        recompute=recompute,
        precision=precision or place.device.training_dtype,
        offload=offload,
        compiled=compiled is not False,
    )
    setting = {
        "seq": seq,
        "layout": layout,
        "software": software,
        "recompute_every": recompute_every,
        "trained": trained.trained(),
        "measured": calibrate or (),
    }
    _of_tokens(model, place, setting, title=name, html=html, json=json)


def _of_images(
    model: str | VisionNetwork, place: Cluster, **setting: Any
) -> VisionTrainingEstimate:
    from ridgeline.plan.vision.training import predict_vision_training

    return predict_vision_training(model, place, **setting)


def _show_images(found: VisionTrainingEstimate, html: Path | None, json: bool) -> None:
    """An estimate for images, as the options of output say."""
    from ridgeline.cli.show import show_answer
    from ridgeline.report.views.vision import vision_training_document

    document = vision_training_document(found)
    show_answer(found, document, json=json, html=html)


def _of_tokens(
    model: str,
    place: Cluster,
    setting: dict[str, Any],
    *,
    title: str,
    html: Path | None,
    json: bool,
) -> None:
    from ridgeline.cli.show import show_answer
    from ridgeline.cost.pipeline_schedule import timeline_of
    from ridgeline.plan.training import estimate
    from ridgeline.report.views.predict_training import estimate_document

    found = estimate.predict_training(model, place, **setting)
    document = estimate_document([found], title=f"{model} on {title}", timeline=timeline_of(found))
    show_answer(found, document, json=json, html=html)


def _cluster_name(cluster: str | None, device: str | None) -> str:
    if cluster is not None and device is not None:
        raise InputError("--cluster and --device say the same thing; give one")
    return cluster if device is None and cluster else f"1x{needed('--cluster', device)}"


def _images_of_one_device(place: Cluster, batch: int | None, global_batch: int | None) -> int:
    """What `--batch` says, or a device's share of `--global-batch`."""
    devices = place.num_devices
    if global_batch is None:
        return needed("--batch", batch)
    if batch is not None and batch * devices != global_batch:
        raise InputError(
            f"--batch {batch} on {devices} devices is a global batch of {batch * devices}, not"
            f" {global_batch}; leave one of the two out"
        )
    if global_batch % devices:
        raise InputError(
            f"--global-batch {global_batch} cannot be shared by {devices} devices; nearest that"
            f" can: {max(1, round(global_batch / devices)) * devices}"
        )
    return global_batch // devices
