"""What a recipe declares of a run before it is paid for: its length, and what it survives."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.diagnose.checklist.evidence import (
    Answer,
    OfRecipe,
    done,
    done_if,
    not_applicable,
    not_done,
)
from ridgeline.records.recipe import Recipe


def _written_down(recipe: Recipe) -> Answer:
    return done(f"the recipe trains {recipe.model.config or recipe.model.script}")


def _checkpoints(recipe: Recipe) -> Answer:
    return done_if(recipe.checkpoint.keep > 0, f"checkpoint.keep is {recipe.checkpoint.keep}")


def _interval(recipe: Recipe) -> Answer:
    saved = recipe.checkpoint
    if not saved.keep:
        return not_done("checkpoint.keep is 0: none are made")
    if saved.every_steps is not None:
        return done(f"every {saved.every_steps} steps, as the recipe says")
    if saved.every_seconds is not None:
        return done(f"every {quantity.shown('seconds', saved.every_seconds)}, as the recipe says")
    return done("by Young and Daly, from what a save costs and how often the run fails")


def _restarts(recipe: Recipe) -> Answer:
    times = recipe.survive.max_restarts
    return done_if(times > 0 and recipe.checkpoint.keep > 0, f"survive.max_restarts is {times}")


def _hangs(recipe: Recipe) -> Answer:
    seconds = recipe.survive.hang_seconds
    return done_if(seconds > 0, f"survive.hang_seconds is {seconds:g}")


def _grace(recipe: Recipe) -> Answer:
    seconds = recipe.survive.grace_seconds
    return done_if(seconds > 0, f"survive.grace_seconds is {seconds:g}")


def _rollback(recipe: Recipe) -> Answer:
    times = recipe.survive.max_rollbacks
    return done_if(times > 0, f"survive.max_rollbacks is {times}")


def _seed(recipe: Recipe) -> Answer:
    return done(f"run.seed is {recipe.run.seed}")


def _held_out(recipe: Recipe) -> Answer:
    data = recipe.text if recipe.images is None else recipe.images
    if data.validation:
        return done(f"validation on {data.validation}")
    return done_if(data.holdout > 0, f"holdout is {data.holdout}, and validation is empty")


def _evaluated(recipe: Recipe) -> Answer:
    every = recipe.run.evaluate_every
    return done_if(every > 0, f"run.evaluate_every is {every}")


def _length(recipe: Recipe) -> Answer:
    if recipe.course_steps is not None:
        return done(f"{recipe.course_steps} steps")
    if recipe.images is not None and recipe.images.epochs is not None:
        return done(f"{recipe.images.epochs:g} epochs")
    return not_done("neither steps nor epochs nor tokens say how long")


def _foretold(recipe: Recipe) -> Answer:
    told = recipe.prediction
    if told is None:
        return not_done("the recipe has no [prediction]")
    return done(
        f"{quantity.shown('seconds', told.step_seconds)} a step,"
        f" {quantity.shown('bytes', told.peak_bytes)} at the peak"
    )


def _fills(recipe: Recipe) -> Answer | None:
    if recipe.cluster is None:
        return None
    count = recipe.cluster.devices.partition("x")[0].strip()
    if not count.isdigit():
        return None
    return done_if(
        int(count) == recipe.layout.num_devices,
        f"the layout fills {recipe.layout.num_devices} of {count} devices",
    )


def _watched(recipe: Recipe) -> Answer:
    every = recipe.run.log_every
    return done_if(every > 0, f"run.log_every is {every}")


def _shuffled(recipe: Recipe) -> Answer:
    so = recipe.text.shuffle if recipe.images is None else recipe.images.shuffle
    return done_if(so, f"shuffle is {so}")


def _tuned(recipe: Recipe) -> Answer | None:
    return done(f"run.stack is {recipe.run.stack}") if recipe.run.stack else None


def _shrinks(recipe: Recipe) -> Answer:
    if recipe.layout.dp == 1:
        return not_applicable("one data-parallel rank: there is nothing to do without")
    return done_if(
        recipe.survive.allow_shrink, f"survive.allow_shrink is {recipe.survive.allow_shrink}"
    )


OF_LAUNCH: dict[str, OfRecipe] = {
    "one-file": _written_down,
    "checkpoints": _checkpoints,
    "checkpoint-interval": _interval,
    "restarts": _restarts,
    "hangs-end": _hangs,
    "grace-on-preemption": _grace,
    "rollback": _rollback,
    "seed": _seed,
    "held-out-data": _held_out,
    "evaluated-on-the-way": _evaluated,
    "known-length": _length,
    "foretold": _foretold,
    "fills-the-cluster": _fills,
    "watched": _watched,
    "shuffled": _shuffled,
    "tuned-on-one-node": _tuned,
    "goes-on-with-fewer": _shrinks,
}
