"""From a recipe to one optimizer over all modules that this rank holds.

Parameters fall into groups by what is done to them, the same in every layout, so that a state can
be saved by one and loaded by another:

    matrices        decayed
    others          norms and biases: not decayed
    orthogonal      with `muon`: the matrices inside the blocks; decayed

Every group keeps `rate_share`, its learning rate over the recipe's: the schedule moves one number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from ridgeline.checkpoints.names import unwrapped_name
from ridgeline.errors import InputError
from ridgeline.records.recipe import Recipe, RecipeOptimizer
from ridgeline.train.optimizers.adafactor import Adafactor
from ridgeline.train.optimizers.adamw import AdamW
from ridgeline.train.optimizers.elementwise import Lion, Sgd
from ridgeline.train.optimizers.muon import Muon
from ridgeline.train.optimizers.shards import Group, Rounding, ShardedOptimizer
from ridgeline.train.ranks import Ranks
from ridgeline.train.schedule import peak_learning_rate

_IN_A_BLOCK = re.compile(r"(^|\.)\d+\.")
"""Path components that DDP, torch.compile and recomputation put into names."""


def build_optimizer(
    modules: Sequence[nn.Module],
    recipe: Recipe,
    ranks: Ranks,  # noqa: ARG001 - as every builder of a rank
) -> ShardedOptimizer:
    """One optimizer over every trainable parameter of the modules.

    Raises:
        InputError: Nothing is trainable, or the settings contradict each other.
    """
    wanted = recipe.optimizer
    groups = _groups(modules, recipe)
    rounding = _rounding(recipe)
    match wanted.name:
        case "adamw" | "adamw8bit":
            optimizer: ShardedOptimizer = AdamW(
                groups,
                betas=wanted.betas,
                epsilon=wanted.epsilon,
                rounding=rounding,
                eight_bit=wanted.name == "adamw8bit",
            )
        case "adafactor":
            optimizer = Adafactor(groups, rounding=rounding)
        case "lion":
            optimizer = Lion(groups, betas=wanted.betas, rounding=rounding)
        case "muon":
            optimizer = Muon(
                groups,
                momentum=wanted.momentum,
                betas=wanted.betas,
                epsilon=wanted.epsilon,
                match_adamw=wanted.adam_learning_rate is None,
                rounding=rounding,
            )
        case "sgd":
            optimizer = Sgd(groups, momentum=wanted.momentum, rounding=rounding)
    return optimizer


def named_parameters(modules: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    """Every parameter of the modules once, under the name it has in the model alone."""
    seen: set[int] = set()
    for one in modules:
        for name, parameter in one.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield unwrapped_name(name), parameter


def as_one_module(modules: Sequence[nn.Module]) -> nn.Module:
    """A module that only names the parameters of all modules, as the model alone names them.

    `torch.distributed.checkpoint.state_dict.get_optimizer_state_dict(as_one_module(modules),
    optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))` then gives keys that
    every layout shares.
    """
    root = nn.Module()
    for name, parameter in named_parameters(modules):
        *path, leaf = name.split(".")
        module = root
        for step in path:
            if step not in module._modules:
                module.add_module(step, nn.Module())
            child = module._modules[step]
            assert child is not None
            module = child
        module.register_parameter(leaf, parameter)
    return root


def _groups(modules: Sequence[nn.Module], recipe: Recipe) -> list[Group]:
    wanted = recipe.optimizer
    sorted_out: dict[str, list[Tensor]] = {"orthogonal": [], "matrices": [], "others": []}
    for name, parameter in named_parameters(modules):
        if parameter.requires_grad:
            sorted_out[_kind(name, parameter, wanted)].append(parameter)
    if not any(sorted_out.values()):
        raise InputError("recipe: no parameter is trainable, so there is nothing to optimise")
    rate = peak_learning_rate(recipe)
    adam_share = 1.0
    if wanted.name == "muon" and wanted.adam_learning_rate is not None:
        adam_share = wanted.adam_learning_rate / wanted.learning_rate
    groups: list[Group] = []
    for kind, parameters in sorted_out.items():
        if not parameters:
            continue
        share = 1.0 if kind == "orthogonal" else adam_share
        group: Group = {
            "params": parameters,
            "lr": rate * share,
            "rate_share": share,
            "weight_decay": 0.0 if kind == "others" else wanted.weight_decay,
        }
        if wanted.name == "muon":
            group["orthogonal"] = kind == "orthogonal"
        groups.append(group)
    return groups


def _kind(name: str, parameter: Tensor, wanted: RecipeOptimizer) -> str:
    if parameter.ndim < 2:
        return "others"
    return "orthogonal" if wanted.name == "muon" and _IN_A_BLOCK.search(name) else "matrices"


def _rounding(recipe: Recipe) -> Rounding | None:
    if not recipe.precision.stochastic_rounding:
        return None
    if recipe.precision.weights != "bf16":
        raise InputError(
            "recipe: precision.stochastic_rounding is for bf16 weights; set precision.weights ="
            ' "bf16" or leave it out'
        )
    return Rounding(recipe.run.seed)
