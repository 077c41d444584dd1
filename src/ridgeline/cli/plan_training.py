"""`ridgeline plan training` finds the best layout for a training run, and why others lose."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from ridgeline.cli.output_options import Html, Json, output_file
from ridgeline.errors import InputError
from ridgeline.records.plan import Objective

if TYPE_CHECKING:
    from ridgeline.models import ModelSpec
    from ridgeline.plan.training.task import TrainingTask
    from ridgeline.records.plan import Plan
    from ridgeline.report.document import ReportDocument

_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def plan_training(
    model: Model,
    cluster: Annotated[
        str,
        typer.Option(
            metavar="COUNTxDEVICE",
            help="Such as 64xH100. With --days the largest allowed; several kinds with commas.",
        ),
    ],
    global_batch: GlobalBatch,
    seq: SequenceLength = None,
    tokens: Annotated[
        str | None, typer.Option(help="Tokens of the whole run, as 300B: adds days, money, energy.")
    ] = None,
    objective: Annotated[
        Objective, typer.Option(help="What to keep low; for cost, smaller clusters are tried too.")
    ] = "time",
    precision: Annotated[
        list[str] | None,
        typer.Option(
            help="Number format of matmuls; may be given several times. Default: 16 bits."
        ),
    ] = None,
    software: Software = "torch",
    days: Annotated[
        float | None,
        typer.Option(help="Find the smallest cluster (with --objective cost: the cheapest)."),
    ] = None,
    domain_size: DomainSize = None,
    network: Network = None,
    oversubscription: Oversubscription = None,
    write: Annotated[
        Path | None, output_file("FILE", "Write the best layout as a recipe (TOML).")
    ] = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """The best layout of a training run out of every valid one, and why the others lose."""
    from ridgeline.cli.show import print_document, print_json, write_page
    from ridgeline.plan.training.plan import task_of

    amount = None if tokens is None else _amount(tokens)
    tasks = [
        task_of(
            model,
            cluster_of(text, domain_size, network, oversubscription),
            global_batch=global_batch,
            seq=seq,
            precisions=precision,  # type: ignore[arg-type]  # checked there, word by word
            software=software,
        )
        for text in cluster.split(",")
    ]
    if write is not None:
        _check_trainable(tasks[0].model)
    task, plan = _planned(tasks, amount, days, objective)
    if write is not None:
        from ridgeline.plan.training.recipe import recipe_of
        from ridgeline.records.recipe_file import write_recipe

        write_recipe(write, recipe_of(plan, model, task.model, task.cluster))
    if html is not None:
        write_page("--html", html, _document(plan, task, curves=True))
    if json:
        print_json(plan)
    else:
        print_document(_document(plan, task, curves=False))


def _check_trainable(model: ModelSpec) -> None:
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


def _amount(text: str) -> float:
    """A number of tokens: 1e12, 300B, 2T."""
    found = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([kmbt]?)\s*", text.lower())
    try:
        value = float(found[1]) * _SUFFIXES[found[2]] if found else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < 1e18:
        raise InputError(f"--tokens {text}: give a number above 0, as 1e12, 300B or 2T")
    return value


def _document(plan: Plan, task: TrainingTask, *, curves: bool) -> ReportDocument:
    """What is shown; curves over numbers of devices are for pages, and take longer."""
    from ridgeline.cost.pipeline_schedule import timeline_of
    from ridgeline.plan.training.scaling_curves import training_scaling
    from ridgeline.report.views.plan_training import plan_document

    best = plan.best.estimate
    given = (task.model, task.cluster, task.workload, best.layout, task.coefficients)
    scaling = training_scaling(*given) if curves else []
    return plan_document(plan, timeline=timeline_of(best), scaling=scaling)
