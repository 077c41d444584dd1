"""The recipe of a plan: the layout that was found, with an optimizer to start from."""

from __future__ import annotations

from pathlib import Path

from ridgeline.hardware.cluster import Cluster
from ridgeline.models import parameter_count
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.training.starting_rate import FINAL_SHARE, starting_rate
from ridgeline.plan.training.trained import WHOLE, Trained
from ridgeline.records.plan import Plan
from ridgeline.records.recipe import (
    Recipe,
    RecipeCluster,
    RecipeData,
    RecipeModel,
    RecipeOptimizer,
    RecipePrecision,
    RecipePrediction,
)
from ridgeline.records.recipe_memory import RecipeMemory


def recipe_of(
    plan: Plan,
    config: str,
    model: ModelSpec,
    cluster: Cluster,
    *,
    trained: Trained = WHOLE,
    disk: Path | None = None,
) -> Recipe:
    """The plan's best layout as a recipe.

    Args:
        plan: Of a language model.
        config: What the user called the model.
        model: That model.
        cluster: Where the plan is for.
        trained: What is trained, and by which optimizer.
        disk: The folder that takes what the layout keeps on disk.
    """
    rate = starting_rate(parameter_count(model), adapters=trained.adapter is not None)
    estimate = plan.best.estimate
    return Recipe(
        model=RecipeModel(config=config),
        data=RecipeData(seq=plan.seq, tokens=None if plan.bill is None else plan.bill.tokens),
        layout=plan.best.layout,
        memory=RecipeMemory(offload_path="" if disk is None else str(disk.resolve())),
        precision=RecipePrecision(
            weights=trained.kept_in, stochastic_rounding=trained.kept_in == "bf16"
        ),
        adapter=trained.adapter,
        optimizer=RecipeOptimizer(
            name=trained.optimizer,
            learning_rate=rate,
            final_learning_rate=round(rate * FINAL_SHARE, 9),
        ),
        cluster=RecipeCluster(
            devices=plan.cluster,
            domain_size=cluster.domain_size,
            domain_bytes_per_second=cluster.domain_bytes_per_second,
            network_bytes_per_second=cluster.network_bytes_per_second,
        ),
        prediction=RecipePrediction(
            step_seconds=estimate.step_seconds,
            tokens_per_second_per_gpu=estimate.tokens_per_second_per_gpu,
            peak_bytes=estimate.memory.peak_bytes,
            steps=None if plan.bill is None else plan.bill.steps,
        ),
    )
