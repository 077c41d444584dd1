"""What each rank of the optimizer tests runs: steps on gradients that depend on names alone.

Every layout is given the same gradients, cut as its parameters are, so what is left to differ is
the optimizer.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe, RecipeData, RecipeModel, RecipeOptimizer
from ridgeline.train.averaging import WeightAverage
from ridgeline.train.model import fill, shard_of, skeleton
from ridgeline.train.optimizers.build import as_one_module, build_optimizer, named_parameters
from ridgeline.train.optimizers.shards import local
from ridgeline.train.parallel.sharding import shard
from ridgeline.train.parallel.tensor import split_matrices
from ridgeline.train.ranks import Ranks, join, leave

STEPS = 3
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def recipe_of(config: str, name: str, layout: Layout, **precision: Any) -> Recipe:
    recipe = Recipe(
        model=RecipeModel(config=config),
        data=RecipeData(path="none", seq=8),
        layout=layout,
        optimizer=RecipeOptimizer(
            name=name,  # type: ignore[arg-type]
            learning_rate=1e-2,
            final_learning_rate=1e-3,
            warmup_steps=0,
        ),
    )
    return msgspec.structs.replace(
        recipe, precision=msgspec.structs.replace(recipe.precision, **precision)
    )


def run_cases(argument: dict[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Whole weights after some steps, by case.

    Keys: `config`; `cases`, from a name to (optimizer, layout, precision); `load` and `save`,
    folders of checkpoints; `first_step`; `steps`.
    """
    torch.set_num_threads(1)
    results = {}
    for case, (name, layout, precision) in argument["cases"].items():
        recipe = recipe_of(argument["config"], name, layout, **precision)
        ranks = join(layout, timeout_seconds=60)
        model = laid_out(recipe, ranks)
        optimizer = build_optimizer([model], recipe, ranks)
        average = WeightAverage([model], 0.5)
        view = as_one_module([model])
        if argument.get("load"):
            _load(view, optimizer, Path(argument["load"]) / case)
        first = argument.get("first_step", 0)
        for step in range(first, first + argument.get("steps", STEPS)):
            set_gradients(model, step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            average.update()
        if argument.get("save"):
            _save(view, optimizer, Path(argument["save"]) / case)
        results[case] = {name: _whole(p) for name, p in named_parameters([model])}
        results[f"{case} average"] = {n: _whole(a) for n, a in average.shadows().items()}
    leave()
    return results


def laid_out(recipe: Recipe, ranks: Ranks) -> nn.Module:
    model = skeleton(recipe)
    split_matrices(model, ranks)
    shard(model, recipe, ranks)
    fill([model], recipe, ranks)
    return model


def set_gradients(model: nn.Module, step: int) -> None:
    for name, parameter in named_parameters([model]):
        digest = hashlib.sha256(f"{step} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        whole = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        gradient = torch.empty_like(parameter)
        local(gradient).copy_(shard_of(whole, parameter))
        parameter.grad = gradient


def _save(view: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    state = get_optimizer_state_dict(view, optimizer, options=_FLAT)
    dcp.save({"model": view.state_dict(), "optimizer": state}, checkpoint_id=folder)


def _load(view: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    model = view.state_dict()
    state = get_optimizer_state_dict(view, optimizer, options=_FLAT)
    dcp.load({"model": model, "optimizer": state}, checkpoint_id=folder)
    view.load_state_dict(model)
    set_optimizer_state_dict(view, optimizer, state, options=_FLAT)


def _whole(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()
