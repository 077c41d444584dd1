"""Image classification as a task: image files in, a classifier out.

The trained classifier is a folder, whatever layout trained it. Of transformers' models it is a
Hugging Face folder: config.json with the names of the classes, weights and statistics, and
preprocessor_config.json with the view that validation had. Of a script's model it is
`model.safetensors`, which `model.checkpoint` of another recipe takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ridgeline.records.image_recipe import RecipeImages
from ridgeline.records.recipe import Recipe
from ridgeline.train.export import gathered, written_whole
from ridgeline.train.images.feed import ImageFeed
from ridgeline.train.images.model import WEIGHTS, image_skeleton
from ridgeline.train.images.prepared import PreparedImages, prepare_images, settled
from ridgeline.train.images.statistics import persistent_buffers
from ridgeline.train.images.views import resized_side
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


PREPROCESSOR = "preprocessor_config.json"
_BILINEAR = 2
"""Pillow's number of it."""


def save_classifier(
    recipe: Recipe,
    ranks: Ranks,
    classes: Sequence[str],
    modules: Sequence[nn.Module],
    folder: Path,
) -> None:
    """Write the folder, which is whole or not there. Every rank must call it."""
    state = gathered(modules, ranks)
    state |= {name: one.detach().cpu() for name, one in persistent_buffers(modules).items()}
    with written_whole(folder, ranks) as temporary:
        if temporary is None:
            return
        model = image_skeleton(_without_checkpoint(recipe), torch.float32)
        if isinstance(model, PreTrainedModel):
            _save_pretrained(model, recipe, state, classes, temporary)
        else:
            _save_scripted(model, state, temporary)


def _save_pretrained(
    model: PreTrainedModel,
    recipe: Recipe,
    state: dict[str, Tensor],
    classes: Sequence[str],
    folder: Path,
) -> None:
    assert recipe.images is not None
    if len(classes) == model.config.num_labels:
        model.config.id2label = dict(enumerate(classes))
        model.config.label2id = {name: label for label, name in enumerate(classes)}
    known = set(model.state_dict())
    kept = {name: one.contiguous() for name, one in state.items() if name in known}
    model.save_pretrained(folder, state_dict=kept)
    (folder / PREPROCESSOR).write_bytes(msgspec.json.encode(preprocessor(recipe.images)))


def preprocessor(wanted: RecipeImages) -> dict[str, Any]:
    """How validation saw images, as transformers' image processors write it."""
    mean, deviation = wanted.normalisation
    return {
        "image_processor_type": "BitImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": resized_side(wanted)},
        "resample": _BILINEAR,
        "do_center_crop": True,
        "crop_size": {"height": wanted.size, "width": wanted.size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(deviation),
        "do_convert_rgb": wanted.channels == 3,
    }


def _save_scripted(model: nn.Module, state: dict[str, Tensor], folder: Path) -> None:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    known = set(model.state_dict())
    kept = {name: one.clone().contiguous() for name, one in state.items() if name in known}
    save_file(kept, folder / WEIGHTS)


def _without_checkpoint(recipe: Recipe) -> Recipe:
    """Only names and shapes are wanted."""
    bare = msgspec.structs.replace(recipe.model, checkpoint="")
    return msgspec.structs.replace(recipe, model=bare)
