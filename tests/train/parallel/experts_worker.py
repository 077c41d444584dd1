"""What each rank of `test_experts.py` runs."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tests.train.parallel.pipeline_worker import descend
from tests.train.parallel.small_models import make_batch, make_model, make_recipe

from ridgeline.train.loss import next_token
from ridgeline.train.parallel.context import cut_sequences, use_ring_attention
from ridgeline.train.parallel.experts import is_mixture, spread_experts
from ridgeline.train.parallel.plain import PlainPasses
from ridgeline.train.parallel.sharding import shard, share_gradients
from ridgeline.train.parallel.tensor import split_matrices
from ridgeline.train.ranks import join


def run_cases(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Losses of each case's steps, and how many numbers of expert weights this rank keeps."""
    return [_run(case) for case in cases]


def _run(case: dict[str, Any]) -> dict[str, Any]:
    model = make_model(case.get("kind", "llama"), **case.get("changes", {}))
    layout = case["layout"]
    data = layout.get("dp", 1)
    recipe = make_recipe(micro_batch=2, global_batch=2 * case["micro_batches"], **layout)
    ranks = join(recipe.layout, timeout_seconds=60.0)
    if case.get("recompute"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
    use_ring_attention(model, ranks)
    spread_experts(model, ranks)
    split_matrices(model, ranks)
    shard(model, recipe, ranks)
    shared = share_gradients(model, recipe, ranks)
    cast = partial(torch.autocast, "cpu", torch.bfloat16, enabled=case.get("autocast", False))
    passes = PlainPasses(shared, ranks, next_token(), autocast=cast)
    each = case["micro_batches"] // data
    first = ranks.index("data") * each
    losses = []
    for step in range(case["steps"]):
        every = [
            make_batch(step, place, rows=2, documents=case.get("documents", False))
            for place in range(case["micro_batches"])
        ]
        targets = sum(batch.num_targets() for batch in every)
        mine = [cut_sequences(batch, ranks) for batch in every[first : first + each]]
        total = passes.run(mine, targets)
        if data > 1:
            torch.distributed.all_reduce(total, group=ranks.group("data"))
        descend([model])
        losses.append(float(total / targets))
    kept = _kept(model)
    losses.append(float(passes.evaluate(cut_sequences(make_batch(99, 0, rows=3), ranks))))
    return {"losses": losses, "kept": kept}


def _kept(model: torch.nn.Module) -> int:
    total = 0
    for experts in model.modules():
        if is_mixture(experts):
            for parameter in experts.parameters():
                local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                total += local.numel()
    return total
