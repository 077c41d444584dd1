"""What the tests of compression run on every rank."""

from __future__ import annotations

import copy
import os
from typing import Any, get_args
from unittest import mock

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ridgeline.records.layout import Layout
from ridgeline.records.recipe import (
    Recipe,
    RecipeCommunication,
    RecipeData,
    RecipeModel,
    RecipeOptimizer,
)
from ridgeline.train.compression.bucket import Bucket, GradientScheme
from ridgeline.train.compression.counted import CountedGroup, Traffic
from ridgeline.train.compression.wire import SCHEMES as OFFERED
from ridgeline.train.compression.wire import Hierarchical, attach
from ridgeline.train.local_sgd import LocalSgd
from ridgeline.train.ranks import Ranks, join, leave

(_KINDS,) = (
    get_args(field.type)
    for field in msgspec.structs.fields(RecipeCommunication)
    if field.name == "compression"
)
SCHEMES = tuple(sorted(set(_KINDS) - {"none"}))
"""What a recipe may ask for."""
SHAPES = {"embedding": (40, 24), "up": (24, 64), "norm": (24,), "down": (64, 24), "bias": (3,)}
SIZES = {name: torch.Size(shape).numel() for name, shape in SHAPES.items()}
FIRST = (("embedding", "up"), ("norm", "down", "bias"))
SECOND = (("bias", "down", "up"), ("norm", "embedding"))
"""Parameters as bucketed in the first half of the rounds, and in the second."""
SETTINGS = RecipeCommunication(kept_share=0.05, powersgd_rank=3)


def recipe(ranks: int, **communication: Any) -> Recipe:
    settings = {"kept_share": 0.05, "powersgd_rank": 2, "bucket_bytes": 4096} | communication
    return Recipe(
        model=RecipeModel(config="none"),
        data=RecipeData(path="none", seq=8),
        layout=Layout(dp=ranks, global_batch=ranks, precision="fp32"),
        optimizer=RecipeOptimizer(learning_rate=0.1, final_learning_rate=0.0),
        communication=RecipeCommunication(**settings),
    )


def make(name: str, counted: CountedGroup) -> GradientScheme:
    return OFFERED[name](SETTINGS, counted, SIZES)


def gradients_of(rank: int, number: int) -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(1000 * number + rank)
    return {name: torch.randn(shape, generator=chance) for name, shape in SHAPES.items()}


def exchange(scheme: GradientScheme, gradients: dict[str, Tensor], order: Any) -> dict[str, Tensor]:
    """One backward pass's buckets; what every parameter ends up with."""
    result = {}
    for position, names in enumerate(order):
        buffer = torch.cat([gradients[name].reshape(-1) for name in names])
        views = buffer.split([SIZES[name] for name in names])
        views = tuple(view.view(SHAPES[name]) for name, view in zip(names, views, strict=True))
        last = position == len(order) - 1
        scheme.reduce(
            Bucket(position=position, names=names, buffer=buffer, gradients=views, last=last)
        )
        result |= {name: view.clone() for name, view in zip(names, views, strict=True)}
    return result


def every_scheme(_: None) -> dict[str, Any]:
    """Six rounds of each scheme: what was sent, what is remembered, and whether resuming shows."""
    world = int(os.environ["WORLD_SIZE"])
    ranks = join(Layout(dp=world, global_batch=world, precision="fp32"), timeout_seconds=60)
    counted = CountedGroup(ranks.group("gradients"))
    seen = {name: _six_rounds(name, counted) for name in SCHEMES}
    leave()
    return seen


def _six_rounds(name: str, counted: CountedGroup) -> dict[str, Any]:
    scheme = make(name, counted)
    sent: dict[str, Tensor] = {key: torch.zeros(shape) for key, shape in SHAPES.items()}
    resumed_alike = True
    traffic = []
    for number in range(6):
        order = FIRST if number < 3 else SECOND
        saved = copy.deepcopy(scheme.state_dict())
        result = exchange(scheme, gradients_of(counted.rank, number), order)
        traffic.append(counted.take())
        again = make(name, counted)
        again.load_state_dict(saved)
        # A resumed run has other buckets in its first step.
        repeated = exchange(again, gradients_of(counted.rank, number), SECOND)
        counted.take()
        if number:
            resumed_alike &= all(torch.equal(result[key], repeated[key]) for key in result)
        for key, value in result.items():
            sent[key] += value
    return {
        "sent": sent,
        "state": scheme.state_dict(),
        "resumed_alike": resumed_alike,
        "traffic": traffic,
    }


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(
            nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


def data_of(rank: int, step: int) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(50 * step + rank)
    inputs = torch.randn(32, 16, generator=chance)
    weights = torch.randn(16, 4, generator=torch.Generator().manual_seed(9))
    return inputs, torch.tanh(inputs @ weights)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> float:
    inputs, targets = data_of(rank, step)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


def train_with_hook(ranks: Ranks, steps: int, **communication: Any) -> dict[str, Any]:
    model = DistributedDataParallel(
        Toy(), process_group=ranks.group("gradients"), bucket_cap_mb=0.008
    )
    wire = attach(model, recipe(ranks.world, **communication), ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, sent, between = [], [], []
    take = Hierarchical.take

    def noting(scheme: Hierarchical) -> tuple[Traffic, Traffic]:
        inside, across = take(scheme)
        between[:] = [across]
        return inside, across

    with mock.patch.object(Hierarchical, "take", noting):
        for step in range(steps):
            losses.append(one_step(model, optimizer, ranks.rank, step))
            sent.append(wire.take())
    weights = torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])
    return {"losses": losses, "traffic": sent, "weights": weights, "between": between}


def resume_every_hook(_: None) -> dict[str, bool]:
    """Whether an interrupted run ends with the same bits, for each scheme."""
    world = int(os.environ["WORLD_SIZE"])
    ranks = join(Layout(dp=world, global_batch=world, precision="fp32"), timeout_seconds=60)
    alike = resumed(ranks)
    leave()
    return alike


def asked_hooks(names: list[str]) -> dict[str, Any]:
    """Steps of a small model with each of these schemes, and with none."""
    world = int(os.environ["WORLD_SIZE"])
    ranks = join(Layout(dp=world, global_batch=world, precision="fp32"), timeout_seconds=60)
    steps = 60 if "randomk" in names else 30  # in twenty each weight is reached once
    seen = {name: train_with_hook(ranks, steps, compression=name) for name in ("none", *names)}
    seen["late"] = train_with_hook(ranks, 3, compression="sign", compression_start=2)
    seen["hierarchical"] = train_with_hook(ranks, steps, hierarchical=True)
    seen["hierarchical bf16"] = train_with_hook(ranks, 2, hierarchical=True, compression="bf16")
    leave()
    return seen


def resumed(ranks: Ranks) -> dict[str, bool]:
    """Whether a run that was saved after 3 of 6 steps ends with the same bits."""
    alike = {}
    for name in SCHEMES:
        ends = []
        for interrupted in (False, True):
            model, wire, optimizer = _hooked(ranks, name)
            for step in range(6):
                if interrupted and step == 3:
                    saved = copy.deepcopy((wire.state_dict(), model.module.state_dict()))
                    model, wire, optimizer = _hooked(ranks, name)
                    wire.load_state_dict(saved[0])
                    model.module.load_state_dict(saved[1])
                one_step(model, optimizer, ranks.rank, step)
            ends.append(torch.cat([weight.detach().view(-1) for weight in model.parameters()]))
        alike[name] = bool(torch.equal(*ends))
    return alike


def _hooked(ranks: Ranks, name: str) -> tuple[DistributedDataParallel, Any, torch.optim.SGD]:
    model = DistributedDataParallel(
        Toy(),
        process_group=ranks.group("gradients"),
        bucket_cap_mb=0.008,
        gradient_as_bucket_view=True,
    )
    wire = attach(model, recipe(ranks.world, compression=name), ranks)
    return model, wire, torch.optim.SGD(model.parameters(), lr=0.1)


def alone_and_together(_: None) -> dict[str, Any]:
    """Local SGD against DistributedDataParallel, DiLoCo against its formula, and resuming."""
    world = int(os.environ["WORLD_SIZE"])
    ranks = join(Layout(dp=world, global_batch=world, precision="fp32"), timeout_seconds=60)
    seen: dict[str, Any] = {"ddp": train_with_hook(ranks, 12)["weights"]}
    for name, steps, settings in (
        ("every step", 12, {"sync_every": 1}),
        ("average", 12, {"sync_every": 4}),
        ("plain outer", 12, {"sync_every": 4, "outer": "diloco", **_outer(1.0, 0.0)}),
        ("diloco", 8, {"sync_every": 4, "outer": "diloco", **_outer(0.7, 0.9)}),
    ):
        seen[name] = _local(ranks, steps, settings)
    seen["resumed"] = _local(
        ranks, 8, {"sync_every": 4, "outer": "diloco", **_outer(0.7, 0.9)}, saved_after=6
    )
    leave()
    return seen


def _outer(learning_rate: float, momentum: float) -> dict[str, float]:
    return {"outer_learning_rate": learning_rate, "outer_momentum": momentum}


def _local(
    ranks: Ranks, steps: int, settings: dict[str, Any], saved_after: int | None = None
) -> dict[str, Any]:
    model = Toy()
    local = LocalSgd([model], recipe(ranks.world, **settings), ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    agreed, before, traffic = [], [], []
    for step in range(steps):
        if step == saved_after:
            saved = copy.deepcopy((model.state_dict(), local.state_dict()))
            model = Toy()
            local = LocalSgd([model], recipe(ranks.world, **settings), ranks)
            model.load_state_dict(saved[0])
            local.load_state_dict(saved[1])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        one_step(model, optimizer, ranks.rank, step)
        before.append(_flat(model))
        agreed.append(local.after_step())
        traffic.append(local.take())
    return {"weights": _flat(model), "agreed": agreed, "before": before, "traffic": traffic}


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().reshape(-1) for weight in model.parameters()]).clone()


def start_weights() -> Tensor:
    return _flat(Toy())
