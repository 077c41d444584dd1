"""Image classification as a task: image files in, a classifier out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ridgeline.records.recipe import Recipe
from ridgeline.train.images.feed import ImageFeed
from ridgeline.train.images.prepared import PreparedImages, prepare_images, settled
from ridgeline.train.images.saving import save_classifier
from ridgeline.train.ranks import Ranks
from ridgeline.train.task import LearningTask


def image_classification(recipe: Recipe, ranks: Ranks, tell: Callable[[str], None]) -> LearningTask:
    """Find the images of a recipe and stand ready to read them. Every rank must call it.

    Raises:
        InputError: The images cannot be used.
    """
    prepared = prepare_images(recipe)
    recipe = settled(recipe, prepared)
    if ranks.rank == 0:
        tell(_said(prepared))
    feed = ImageFeed(prepared, recipe, ranks)
    return LearningTask(
        recipe=recipe,
        feed=feed,
        held_out=feed.held_out,
        save=partial(save_classifier, recipe, ranks, prepared.classes),
        saves_what_is_judged=True,
    )


def _said(prepared: PreparedImages) -> str:
    text = f"{len(prepared.train):,} images of {len(prepared.classes):,} classes"
    return text + (f", {len(prepared.held):,} held out" if prepared.held is not None else "")
