"""What a recipe declares of training: precision, memory, communication, data."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.diagnose.checklist.evidence import (
    Answer,
    OfRecipe,
    done,
    done_if,
    not_applicable,
)
from ridgeline.records.recipe import Recipe

_MICROBATCHES_A_STAGE = 4
"""Micro-batches for each pipeline stage from which the bubble is below a fifth (GPipe, arXiv
1811.06965, section 2.3)."""


def _precision(recipe: Recipe) -> Answer:
    return done_if(
        recipe.layout.precision != "fp32", f"layout.precision is {recipe.layout.precision}"
    )


def _scaling(recipe: Recipe) -> Answer:
    if recipe.layout.precision != "fp16":
        return not_applicable(f"layout.precision is {recipe.layout.precision}")
    return done(f"fp16 begins with a loss scale of {recipe.precision.loss_scale:g}")


def _compiled(recipe: Recipe) -> Answer:
    fused = recipe.run.kernels == "fused"
    return done_if(
        recipe.layout.compiled or fused,
        f"layout.compiled is {recipe.layout.compiled}, run.kernels {recipe.run.kernels}",
    )


def _attention(recipe: Recipe) -> Answer | None:
    if recipe.images is not None:
        return None
    attention = recipe.model.attention
    return done_if(attention != "eager", f"model.attention is {attention}")


def _checkpointing(recipe: Recipe) -> Answer | None:
    if recipe.memory.activation_budget_bytes is not None:
        budget = quantity.shown("bytes", recipe.memory.activation_budget_bytes)
        return done(f"as few layers as keep activations below {budget}")
    recompute = recipe.layout.recompute
    return None if recompute == "none" else done(f"layout.recompute is {recompute}")


def _accumulation(recipe: Recipe) -> Answer:
    parts = recipe.layout.num_microbatches
    if parts == 1:
        return not_applicable("the batch of a rank is one micro-batch")
    return done(f"{parts} micro-batches per rank and step")


def _workers(recipe: Recipe) -> Answer:
    workers = recipe.text.workers if recipe.images is None else recipe.images.workers
    return done_if(workers > 0, f"{workers} processes read ahead")


def _channels_last(recipe: Recipe) -> Answer:
    if recipe.images is None:
        return not_applicable("a language model has no convolutions")
    return done_if(
        recipe.images.channels_last, f"images.channels_last is {recipe.images.channels_last}"
    )


def _padding(recipe: Recipe) -> Answer:
    if recipe.images is not None:
        return not_applicable("images are of one size")
    return done_if(recipe.text.packing == "packed", f"data.packing is {recipe.text.packing}")


def _clipped(recipe: Recipe) -> Answer:
    norm = recipe.optimizer.clip_norm
    return done_if(norm > 0, f"optimizer.clip_norm is {norm:g}")


def _warmed_up_rate(recipe: Recipe) -> Answer:
    steps = recipe.optimizer.warmup_steps
    return done_if(steps > 0, f"optimizer.warmup_steps is {steps}")


def _profiled(recipe: Recipe) -> Answer | None:
    steps = recipe.run.profile_steps
    return done(f"run.profile_steps is {list(steps)}") if steps else None


def _processes(recipe: Recipe) -> Answer:
    alone = _alone(recipe)
    return alone or done(f"`ridgeline train` starts {recipe.layout.num_devices} ranks")


def _no_sync(recipe: Recipe) -> Answer:
    if (alone := _alone(recipe)) is not None:
        return alone
    parts = recipe.layout.num_microbatches
    if parts == 1:
        return not_applicable("the batch of a rank is one micro-batch")
    return done("`ridgeline train` sums gradients after the last micro-batch")


def _buckets(recipe: Recipe) -> Answer:
    alone = _alone(recipe)
    size = quantity.shown("bytes", recipe.communication.bucket_bytes)
    if alone is None and recipe.layout.zero:
        return not_applicable(f"zero {recipe.layout.zero} sends shards, not DDP's buckets")
    return alone or done(f"gradients travel in buckets of {size}")


def _compression(recipe: Recipe) -> Answer | None:
    alone = _alone(recipe)
    kind = recipe.communication.compression
    if alone is not None or kind == "none":
        return alone
    return done(f"communication.compression is {kind}")


def _sharded(recipe: Recipe) -> Answer | None:
    alone = _alone(recipe)
    if alone is not None or not recipe.layout.zero:
        return alone
    return done(f"layout.zero is {recipe.layout.zero} over {recipe.layout.fsdp} ranks")


def _inside_the_domain(recipe: Recipe) -> Answer | None:
    if recipe.layout.tp == 1:
        return not_applicable("layout.tp is 1")
    if recipe.cluster is None:
        return None
    return done_if(
        recipe.layout.tp <= recipe.cluster.domain_size,
        f"layout.tp is {recipe.layout.tp}, and {recipe.cluster.domain_size} devices share the fast"
        " links",
    )


def _sequence_parallel(recipe: Recipe) -> Answer:
    if recipe.layout.tp == 1:
        return not_applicable("layout.tp is 1")
    return done_if(recipe.layout.sp, f"layout.sp is {recipe.layout.sp}")


def _bubble(recipe: Recipe) -> Answer:
    stages, parts = recipe.layout.pp, recipe.layout.num_microbatches
    if stages == 1:
        return not_applicable("layout.pp is 1")
    enough = _MICROBATCHES_A_STAGE * stages
    return done_if(
        parts * recipe.layout.vpp >= enough,
        f"{parts} micro-batches in {recipe.layout.vpp} chunks a stage for {stages} stages, of"
        f" {enough} wanted",
    )


def _batch_scaling(recipe: Recipe) -> Answer | None:
    alone = _alone(recipe)
    rule = recipe.optimizer.batch_scaling
    if alone is not None or rule == "none":
        return alone
    return done(f"the learning rate follows the batch by the {rule} rule")


def _own_data(recipe: Recipe) -> Answer:
    return _alone(recipe) or done("`ridgeline train` gives each data-parallel rank its own samples")


def _alone(recipe: Recipe) -> Answer | None:
    if recipe.layout.num_devices > 1:
        return None
    return not_applicable("the layout has one device")


OF_RECIPE: dict[str, OfRecipe] = {
    "mixed-precision": _precision,
    "loss-scaling": _scaling,
    "compile": _compiled,
    "fused-attention": _attention,
    "checkpointing": _checkpointing,
    "accumulation": _accumulation,
    "loader-workers": _workers,
    "channels-last": _channels_last,
    "no-padding": _padding,
    "clipped-gradients": _clipped,
    "learning-rate-warm-up": _warmed_up_rate,
    "profiled": _profiled,
    "one-process-a-device": _processes,
    "no-sync": _no_sync,
    "bucket-size": _buckets,
    "gradient-compression": _compression,
    "sharded-states": _sharded,
    "tensor-parallel-in-a-node": _inside_the_domain,
    "sequence-parallel": _sequence_parallel,
    "small-bubble": _bubble,
    "learning-rate-for-the-batch": _batch_scaling,
    "own-data-for-each-rank": _own_data,
}
