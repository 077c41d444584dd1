"""What layers take on this device, measured: what a pipeline is balanced by where FLOPs mislead.

A layer is timed as a stage of its own: the model without the others (`stages.take_stage`), forward
and backward of one micro-batch, once for each kind of layer there is. What stands before the first
layer and behind the last is the rest of a first and a last stage of one layer. Weights are random
and whole, so that what tensor parallelism would cut is measured uncut: shares, not step times.
Rank 0 measures and tells the others, since all have to cut alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from ridgeline.records.recipe import Recipe
from ridgeline.train.ranks import Ranks

Take = Callable[[PreTrainedModel, list[range], int], nn.Module]
"""The function that makes a stage of a copy of the model."""
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ROUNDS = 4
"""Calls of each, in turns; the best counts, as others on the machine only add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Seconds of one micro-batch, forward and backward."""

    layers: list[float]
    before: float
    behind: float


def measured_times(
    model: PreTrainedModel, layers: nn.ModuleList, take: Take, recipe: Recipe, ranks: Ranks
) -> LayerTimes:
    """The times of every layer and of both ends, the same on all ranks."""
    told: list[LayerTimes | None] = [None]
    if ranks.rank == 0:
        told = [_measure(model, layers, take, recipe, ranks.device)]
    if dist.is_initialized():
        dist.broadcast_object_list(told, src=0)
    assert told[0] is not None
    return told[0]


def _measure(
    model: PreTrainedModel,
    layers: nn.ModuleList,
    take: Take,
    recipe: Recipe,
    device: torch.device,
) -> LayerTimes:
    count = len(layers)
    types = getattr(model.config, "layer_types", None) or [""] * count
    kinds = [(_shape(layer), types[index]) for index, layer in enumerate(layers)]
    firsts = {kind: kinds.index(kind) for kind in kinds}
    cuts = {
        f"layer {at}": ([range(at), range(at, at + 1), range(at + 1, count)], 1)
        for at in firsts.values()
    }
    cuts["first"] = ([range(1), range(1, count)], 0)
    cuts["last"] = ([range(count - 1), range(count - 1, count)], 1)
    dtype = _DTYPES.get(recipe.layout.precision, torch.float32)
    recomputes = recipe.layout.recompute == "full"
    steps = {
        name: _step(take(copy.deepcopy(model), splits, index), recipe, device, dtype)
        for name, (splits, index) in cuts.items()
    }
    best = dict.fromkeys(steps, (float("inf"), float("inf")))
    for number in range(ROUNDS + 1):
        for name, step in steps.items():
            forward, both = step()
            if number:  # the first call compiles, allocates and fills caches
                best[name] = min(best[name][0], forward), min(best[name][1], both)
    cost = {name: both + (one if recomputes else 0.0) for name, (one, both) in best.items()}
    each = [cost[f"layer {firsts[kind]}"] for kind in kinds]
    return LayerTimes(
        layers=each,
        before=max(0.0, cost["first"] - each[0]),
        behind=max(0.0, cost["last"] - each[-1]),
    )


def _shape(layer: nn.Module) -> tuple[object, ...]:
    """What layers that take the same time have in common."""
    return type(layer), tuple((name, one.shape) for name, one in layer.named_parameters())


def _step(
    stage: nn.Module, recipe: Recipe, device: torch.device, dtype: torch.dtype
) -> Callable[[], tuple[float, float]]:
    """The call that computes one micro-batch and tells the seconds of forward, and of both."""
    stage.to_empty(device=device)
    with torch.no_grad():
        for parameter in stage.parameters():
            parameter.normal_(std=0.02)
        for buffer in stage.buffers():
            buffer.fill_(0.5) if buffer.is_floating_point() else buffer.zero_()
    stage.to(dtype)
    config = stage.config
    assert isinstance(stage, PreTrainedModel)
    size = (recipe.layout.micro_batch, recipe.text.seq)
    tokens = torch.zeros(size, dtype=torch.long, device=device)
    hidden = torch.zeros((*size, config.hidden_size), dtype=dtype, device=device)
    positions = torch.arange(size[1], device=device).expand(*size)

    def once() -> tuple[float, float]:
        place = stage.stage_place
        given = tokens if place.is_first else hidden.detach().requires_grad_()  # type: ignore[union-attr]
        started = _now(device)
        out: Tensor = stage(given, position_ids=positions)
        middle = _now(device)
        out.float().mean().backward()
        ended = _now(device)
        stage.zero_grad(set_to_none=True)
        return middle - started, ended - started

    return once


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()
