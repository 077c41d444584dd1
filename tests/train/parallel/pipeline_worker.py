"""What each rank of `test_pipeline.py` runs: many layouts, one after another, in one start."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from tests.train.parallel.small_models import make_batch, make_model, make_recipe
from torch import nn

from ridgeline.train.batch import Batch
from ridgeline.train.loss import token_loss
from ridgeline.train.parallel.context import cut_sequences, use_ring_attention
from ridgeline.train.parallel.experts import spread_experts
from ridgeline.train.parallel.pipeline import PipelinePasses, cut
from ridgeline.train.parallel.sharding import shard
from ridgeline.train.parallel.tensor import split_matrices
from ridgeline.train.ranks import Ranks, join

LEARNING_RATE = 0.1


def run_cases(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Losses of each case's steps, its validation loss, and where tied copies end."""
    return [_run(case) for case in cases]


def reference(case: dict[str, Any]) -> list[float]:
    """Loss per target of each step of one process, then the validation loss."""
    kind = case.get("kind", "llama")
    changes = tuple(case.get("changes", {}).items())
    return _reference(
        kind, changes, case["steps"], case["micro_batches"], case.get("documents", False)
    )


@cache
def _reference(
    kind: str, changes: tuple[Any, ...], steps: int, micro_batches: int, documents: bool
) -> list[float]:
    """Many layouts have one reference."""
    model = make_model(kind, **dict(changes))
    losses = []
    for step in range(steps):
        batches = [
            make_batch(step, place, rows=2, documents=documents) for place in range(micro_batches)
        ]
        targets = sum(batch.num_targets() for batch in batches)
        total = torch.zeros(())
        for batch in batches:
            loss = _whole_loss(model, batch)
            (loss / targets).backward()
            total += loss.detach()
        descend([model])
        losses.append(float(total / targets))
    with torch.no_grad():
        losses.append(float(_whole_loss(model, make_batch(99, 0, rows=3))))
    return losses


def _run(case: dict[str, Any]) -> dict[str, Any]:
    model = make_model(case.get("kind", "llama"), **case.get("changes", {}))
    layout = case["layout"]
    data = layout.get("dp", 1)
    recipe = make_recipe(micro_batch=2, global_batch=2 * case["micro_batches"], **layout)
    ranks = join(recipe.layout, timeout_seconds=60.0)
    stages = cut(model, recipe, ranks)
    if case.get("recompute"):
        for stage in stages:
            stage.gradient_checkpointing_enable({"use_reentrant": False})
    for stage in stages:
        use_ring_attention(stage, ranks)
        spread_experts(stage, ranks)
        split_matrices(stage, ranks)
        shard(stage, recipe, ranks)
    cast = partial(torch.autocast, "cpu", torch.bfloat16, enabled=case.get("autocast", False))
    passes = PipelinePasses(stages, recipe, ranks, token_loss, autocast=cast)
    each = case["micro_batches"] // data
    first = ranks.index("data") * each
    losses = []
    for step in range(case["steps"]):
        every = [make_batch(step, place, rows=2) for place in range(case["micro_batches"])]
        targets = sum(batch.num_targets() for batch in every)
        mine = [cut_sequences(batch, ranks) for batch in every[first : first + each]]
        total = passes.run(mine, targets)
        if data > 1:
            torch.distributed.all_reduce(total, group=ranks.group("data"))
        descend(stages)
        losses.append(float(total / targets))
    losses.append(float(passes.evaluate(cut_sequences(make_batch(99, 0, rows=3), ranks))))
    return {"losses": losses, "tied": _tied_copies(stages, ranks)}


def _tied_copies(stages: list[nn.Module], ranks: Ranks) -> list[bytes]:
    found = []
    for stage in stages:
        place = stage.stage_place
        if place.tied and (place.is_first or place.is_last):
            weight = stage.get_parameter(place.tied)
            whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
            found.append(whole.detach().numpy().tobytes())
    return found


def _whole_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    # With a cache transformers would not tell documents apart.
    tokens = {"input_ids": batch.input_ids, "position_ids": batch.position_ids}
    return token_loss(model(**tokens, use_cache=False).logits, batch.labels)


def descend(parts: list[nn.Module]) -> None:
    """Plain gradient descent: a wrong factor on any gradient shows at once."""
    with torch.no_grad():
        for part in parts:
            for parameter in part.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=LEARNING_RATE)
                    parameter.grad = None
