"""`ridgeline plan training` finds the best layout for a training run, and why others lose."""

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
    Model,
    SequenceLength,
    Software,
    TrainedOptions,
    amount_of,
    image_size_of,
    network_seen,
    of_images,
    of_tokens,
)
from ridgeline.cli.option_groups import needed, refuse_typed
from ridgeline.cli.show import Html, Json, output_file
from ridgeline.errors import InputError
from ridgeline.records.layout import Offload
from ridgeline.records.plan import Objective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ridgeline.hardware.cluster import Cluster
    from ridgeline.models import ModelSpec
    from ridgeline.models.vision.network import VisionNetwork
    from ridgeline.plan.training.task import TrainingTask
    from ridgeline.records.plan import Plan
    from ridgeline.records.vision_plan import VisionTrainingPlan
    from ridgeline.report.document import ReportDocument

OF_TOKENS = {
    "seq": "--image gives the size of its images",
    "tokens": "--images and --epochs give the length of its run",
    "days": "give the candidates as --cluster 8xA100,16xA100: the answer says how long each takes",
    "software": "eager and compiled PyTorch are both tried; leave it out",
    **dict.fromkeys(
        ("adapter", "adapter_rank", "adapter_targets", "weights"),
        "a network for images is trained whole; leave it out",
    ),
    "offload": "every device holds the whole network; leave it out",
    **dict.fromkeys(("disk", "disk_bandwidth"), "nothing of it lies on disk; leave it out"),
    "write": "recipes of networks for images are written by hand; leave it out",
}
"""Options of language models → what to do in place of them."""
OF_IMAGES = {
    **dict.fromkeys(("images", "epochs"), "--tokens gives the length of its run"),
    "image": "--seq gives the length of its sequences",
    "most_global_batch": "--global-batch gives its sequences in one step",
    "cores_per_device": "leave it out",
}
"""Options of networks for images, likewise."""


def plan_training(
    context: typer.Context,
    *,
    model: Model,
    cluster: Annotated[
        str,
        typer.Option(
            metavar="COUNTxDEVICE",
            help="Such as 64xH100; of images several with commas. With --days the largest allowed;"
            " several kinds with commas.",
        ),
    ],
    global_batch: GlobalBatch = None,
    objective: Annotated[
        Objective, typer.Option(help="What to keep low; for cost, smaller clusters are tried too.")
    ] = "time",
    precision: Annotated[
        list[str] | None,
        typer.Option(help="Number format of matmuls; repeatable. Default: 16 bits."),
    ] = None,
    seq: SequenceLength = None,
    tokens: Annotated[
        str | None, of_tokens(help="Tokens of the whole run, as 300B: adds days, money, energy.")
    ] = None,
    software: Software = "torch",
    trained: TrainedOptions,
    offload: Annotated[
        Offload | None,
        of_tokens(
            help="What waits in the host's memory, or on disk. Default: as much as it takes to"
            " fit, in memory."
        ),
    ] = None,
    disk: DiskOptions,
    days: Annotated[
        float | None,
        of_tokens(help="Find the smallest cluster (with --objective cost: the cheapest)."),
    ] = None,
    write: Annotated[
        Path | None, output_file("FILE", "Write the best layout as a recipe (TOML).")
    ] = None,
    images: Images = None,
    epochs: Epochs = None,
    image: ImageSize = None,
    inputs: Inputs = None,
    most_global_batch: Annotated[
        int | None, of_images(help="Images in one step, at the most. Default: 8192.")
    ] = None,
    cores_per_device: Cores = None,
    fabric: ClusterOptions,
    html: Html = None,
    json: Json = False,
) -> None:
    """The best way to train a model out of every valid one, and why the others lose."""
    from ridgeline.measure.network.source import is_module
    from ridgeline.plan.vision.question import check_known
    from ridgeline.records.layout import TRAINED, UNTRAINED

    unwritten = next((one for one in precision or () if one in UNTRAINED), None)
    if write is not None and unwritten is not None:
        raise InputError(
            f"--write: a recipe trains in {', '.join(TRAINED)}; leave --precision {unwritten} out"
        )
    places = [fabric.cluster(text) for text in cluster.split(",")]
    if is_module(model):
        needed("--images", images)  # before it is built and counted, which takes seconds
    seen = network_seen(model, image, inputs)
    if seen is not None:
        refuse_typed(context, OF_TOKENS, f"{model} looks at images")
        found = _of_images(
            seen,
            places,
            images=amount_of("--images", needed("--images", images)),
            epochs=1.0 if epochs is None else epochs,
            image_size=image_size_of(image),
            precisions=precision or (),
            global_batch=global_batch,
            most_global_batch=most_global_batch,
            optimizer=trained.optimizer or "sgd",
            cores_per_device=cores_per_device,
            objective=objective,
        )
        _show_images(found, html, json)
        return
    from ridgeline.plan.training.trained import check_named_as_in_model

    check_known(model)
    refuse_typed(context, OF_IMAGES, f"{model} is no network for images")
    places = [disk.on(place, offload) for place in places]
    tasks = _tasks(
        model,
        places,
        global_batch=needed("--global-batch", global_batch),
        seq=seq,
        precisions=precision,
        software=software,
        offload=offload,
        trained=trained.trained(),
    )
    amount = None if tokens is None else amount_of("--tokens", tokens)
    if write is not None:
        _check_trainable(tasks[0].model, offload, disk.disk)
        check_named_as_in_model(tasks[0].trained)
    task, plan = _planned(tasks, amount, days, objective)
    if write is not None:
        _write_recipe(write, plan, model, task, disk.disk)
    _show(plan, task, html, json)


def _of_images(
    model: str | VisionNetwork,
    places: Sequence[Cluster],
    *,
    most_global_batch: int | None,
    **asked: Any,
) -> VisionTrainingPlan:
    from ridgeline.plan.vision.search_training import MOST_GLOBAL_BATCH, plan_vision_training

    most = MOST_GLOBAL_BATCH if most_global_batch is None else most_global_batch
    return plan_vision_training(model, places, most_global_batch=most, **asked)


def _show_images(found: VisionTrainingPlan, html: Path | None, json: bool) -> None:
    """A plan for images, as the options of output say."""
    from ridgeline.cli.show import show_answer
    from ridgeline.report.views.vision_plan import vision_training_plan_document

    document = vision_training_plan_document(found)
    show_answer(found, document, json=json, html=html)


def _tasks(model: str, places: Sequence[Cluster], **asked: Any) -> list[TrainingTask]:
    from ridgeline.plan.training.plan import task_of

    return [task_of(model, place, **asked) for place in places]


def _write_recipe(
    path: Path, plan: Plan, model: str, task: TrainingTask, disk: Path | None
) -> None:
    from ridgeline.plan.training.recipe import recipe_of
    from ridgeline.records.recipe_file import write_recipe

    found = recipe_of(plan, model, task.model, task.cluster, trained=task.trained, disk=disk)
    write_recipe(path, found)


def _show(plan: Plan, task: TrainingTask, html: Path | None, json: bool) -> None:
    from ridgeline.cli.show import show_answer, write_page

    if html is not None:
        write_page("--html", html, _document(plan, task, curves=True))
    show_answer(plan, _document(plan, task, curves=False), json=json)


def _check_trainable(model: ModelSpec, offload: Offload | None, disk: Path | None) -> None:
    if offload == "all-on-disk":
        raise InputError(
            "--write: `ridgeline train` keeps the optimizer's state alone on disk; leave --write"
            " out, and take what the plan says for DeepSpeed, or --offload optimizer-on-disk"
        )
    if offload == "optimizer-on-disk" and disk is None:
        raise InputError(
            "--write: a recipe names the folder that takes the optimizer's state; give it as"
            " --disk DIR, which `ridgeline hardware --probe --disk DIR` measures"
        )
    if not model.is_causal_language_model:
        raise InputError(
            f"--write: `ridgeline train` trains causal language models, and {model.name} is none;"
            " leave --write out"
        )


def _planned(
    tasks: list[TrainingTask], tokens: float | None, days: float | None, objective: Objective
) -> tuple[TrainingTask, Plan]:
    """The plan of the only task, or of that on the cluster which meets the date."""
    if days is None:
        from ridgeline.plan.training.plan import plan_task

        if len(tasks) > 1:
            raise InputError("--cluster names several kinds: that is for --days; name one")
        return tasks[0], plan_task(tasks[0], tokens=tokens, objective=objective)
    if tokens is None:
        raise InputError("--days needs --tokens: how long a run is depends on it")
    from ridgeline.plan.training.reverse import plan_by_date

    return plan_by_date(tasks, tokens=tokens, days=days, objective=objective)


def _document(plan: Plan, task: TrainingTask, *, curves: bool) -> ReportDocument:
    """What is shown; curves over numbers of devices are for pages, and take longer."""
    from ridgeline.cost.pipeline_schedule import timeline_of
    from ridgeline.plan.training.scaling_curves import training_scaling
    from ridgeline.report.views.plan_training import plan_document

    best = plan.best.estimate
    given = (task.model, task.cluster, task.workload, best.layout, task.coefficients)
    scaling = training_scaling(*given) if curves else []
    return plan_document(plan, timeline=timeline_of(best), scaling=scaling)
