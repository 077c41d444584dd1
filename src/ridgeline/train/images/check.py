"""What a recipe of images cannot have, said before any process starts. No torch here."""

from __future__ import annotations

from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe

_ONE = {
    "tp": "tensor parallelism splits the matrices of language models",
    "pp": "pipelines are cut between the blocks of language models",
    "cp": "context parallelism cuts sequences of tokens",
    "ep": "there are no experts to spread",
}


def check_images(recipe: Recipe) -> None:
    """Refuse what cannot run.

    Raises:
        InputError: The first thing that does not fit, and what would.
    """
    for axis, why in _ONE.items():
        if getattr(recipe.layout, axis) > 1:
            raise InputError(
                f"layout: {axis} = {getattr(recipe.layout, axis)} with [images]: {why}; set it to"
                " 1 and use dp, with zero and fsdp to shard"
            )
    _check_precision(recipe.layout)
    if recipe.precision.weights != "fp32":
        raise InputError(
            f'recipe: precision.weights "{recipe.precision.weights}" is for language models; batch'
            ' norms want "fp32" (layout.precision says what is computed in)'
        )
    if recipe.layout.zero and recipe.images is not None and recipe.images.sync_batch_norm:
        raise InputError(
            f"layout: zero {recipe.layout.zero} with images.sync_batch_norm: shards of its gains"
            " are not gathered; set zero to 0"
        )
    if recipe.cluster is not None or recipe.prediction is not None:
        raise InputError(
            "recipe: [cluster] and [prediction] are the planner's, for language models; leave them"
            " out of a recipe with [images]"
        )
    for section in recipe.sections:
        section.check_for_images(recipe)


def _check_precision(layout: Layout) -> None:
    if layout.precision == "fp8":
        raise InputError(
            'layout.precision "fp8" is for matrices, and convolutions have none;'
            ' use "bf16", "fp16" or "fp32" with [images]'
        )
    if layout.zero and layout.precision != "fp32":
        raise InputError(
            f'layout.precision "{layout.precision}" with zero {layout.zero}: batch norms keep fp32'
            ' statistics, which shards cast to less cannot use; set zero = 0, or "fp32"'
        )
    if layout.offload != "none" or layout.recompute == "selective":
        raise InputError(
            "layout: offload and selective recomputation are for language models; with [images],"
            ' set offload = "none", and recompute to "none" or "full"'
        )
