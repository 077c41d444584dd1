"""The model of an image recipe: of transformers, by preset or configuration, or of a script."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import AutoConfig, AutoModelForImageClassification, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING

from ridgeline.checkpoints.files import StoredTensors
from ridgeline.checkpoints.names import StoredNames
from ridgeline.errors import InputError, in_words
from ridgeline.measure.network.scripted import model_of, run_script, split_script
from ridgeline.records.input_file import read_json
from ridgeline.records.recipe import Recipe
from ridgeline.train.images.statistics import persistent_buffers

WEIGHTS = "model.safetensors"
"""The weights of a script's model in a folder that training wrote."""


@cache
def image_presets() -> dict[str, dict[str, Any]]:
    """Name → configuration, as `presets.toml` has them."""
    text = files("ridgeline.train.images").joinpath("presets.toml").read_text()
    return dict(tomllib.loads(text))


def image_skeleton(recipe: Recipe, dtype: torch.dtype) -> nn.Module:
    """The model of the recipe: without weights from transformers, or as its script has it.

    Raises:
        InputError: There is no such model, or it does not fit the images.
    """
    if recipe.model.script:
        return _scripted(recipe).to(dtype)
    config = image_config(recipe)
    chosen = {}
    if recipe.model.attention != "sdpa":
        chosen["attn_implementation"] = recipe.model.attention
    with init_empty_weights(include_buffers=False):
        model = AutoModelForImageClassification.from_config(config, dtype=dtype, **chosen)
    return _laid_out(model, recipe).train()


def image_config(recipe: Recipe) -> PretrainedConfig:
    """The configuration that a recipe names: of a preset, a file or a folder.

    Raises:
        InputError: There is none, it is of no image classifier, or of other images or classes.
    """
    wanted, name = recipe.images, recipe.model.config
    assert wanted is not None
    values = image_presets().get(name)
    ours = values is not None
    values = dict(values) if values is not None else _stored(name)
    kind = values.pop("model_type", "")
    try:
        config = AutoConfig.for_model(kind, **values)
    except Exception as error:  # a configuration can be wrong in any way
        raise InputError(f"model.config {name!r}: {in_words(error)}") from None
    if type(config) not in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        raise InputError(
            f"model.config {name!r}: transformers has no image classifier of type {kind!r}; with"
            " [images], give one such as resnet-50 or vit-small"
        )
    fits = {"num_channels": wanted.channels, "image_size": wanted.size}
    for key, value in fits.items():
        if ours or key not in values:
            if hasattr(config, key):
                setattr(config, key, value)
        elif values[key] not in (value, [value, value]):
            raise InputError(
                f"model.config {name!r}: its {key} is {values[key]} and the recipe's images have"
                f" {value}; change images.{'size' if key == 'image_size' else 'channels'}, or it"
            )
    classes = wanted.classes
    said = "id2label" in values or "num_labels" in values
    if classes is not None and not said:
        config.num_labels = classes
    elif classes is not None and config.num_labels < classes:
        raise InputError(
            f"model.config {name!r}: tells {config.num_labels} classes apart and the images have"
            f" {classes}; set its num_labels"
        )
    return config


def load_buffers(modules: Sequence[nn.Module], recipe: Recipe) -> None:
    """Give the buffers the values of the recipe's checkpoint, such as batch norms' statistics."""
    folder = Path(recipe.model.checkpoint).expanduser()
    buffers = persistent_buffers(modules)
    if not recipe.model.checkpoint or recipe.model.script or not buffers:
        return
    stored, names = StoredTensors(folder), StoredNames(image_skeleton(recipe, torch.float32))
    found = {}
    for key in stored.names:
        target, _ = names.target(key) or (None, None)
        if target in buffers:
            found[target] = key
    missing = sorted(name for name in buffers if name not in found and "running" in name)
    if missing:
        raise InputError(
            f"{folder}: has no {missing[0]}; give a checkpoint with the statistics of its batch"
            " norms"
        )
    with torch.no_grad():
        for name, key in found.items():
            buffers[name].copy_(stored.read(key))


def load_scripted(model: nn.Module, folder: Path) -> None:
    """Give a script's model the weights that training left in a folder.

    Raises:
        InputError: There are none, or they are of another model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / WEIGHTS if folder.is_dir() else folder
    if not path.is_file() or path.suffix != ".safetensors":
        raise InputError(f"{path}: no such file of weights; give a folder with {WEIGHTS}")
    try:
        model.load_state_dict(load_file(path))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise InputError(
            f"{path}: is not of the model that the script makes ({_first(error)})"
        ) from None


def _first(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])


def _stored(name: str) -> dict[str, Any]:
    """The keys of a config.json."""
    path = Path(name).expanduser()
    if not path.exists() and "/" not in name and not name.endswith(".json"):
        near = difflib.get_close_matches(name, image_presets(), n=3, cutoff=0.4)
        known = ", ".join(near or image_presets())
        raise InputError(
            f"model.config {name!r}: no such preset of image classifiers, file or folder; there"
            f" are {known}"
        )
    return read_json(path / "config.json" if path.is_dir() else path, dict[str, Any])


def _scripted(recipe: Recipe) -> nn.Module:
    """What `model.script` makes, with the seed of the run."""
    named = split_script(recipe.model.script)
    if named is None or not named[1].isidentifier():
        raise InputError(f"model.script {recipe.model.script!r} is not FILE.py:NAME")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.run.seed)
        script = _run_once(named[0].expanduser())
        if isinstance(getattr(script, named[1], None), nn.Module):
            raise InputError(
                f"model.script {recipe.model.script}: is one module, and a run needs several of"
                " their own; give a function or a class"
            )
        torch.manual_seed(recipe.run.seed)  # whatever importing drew
        model = model_of(script, named[1], "model.script")
    if recipe.model.checkpoint:
        load_scripted(model, Path(recipe.model.checkpoint).expanduser())
    return _laid_out(model, recipe).train()


@cache
def _run_once(path: Path) -> ModuleType:
    """The script as a module, whose classes stay the same through a run."""
    return run_script(path, "model.script")


def _laid_out(model: nn.Module, recipe: Recipe) -> nn.Module:
    assert recipe.images is not None
    # FSDP2 takes no parameter that is not contiguous.
    if recipe.images.channels_last and not recipe.layout.zero:
        for parameter in model.parameters():
            if parameter.ndim == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return model
