"""From what a user names to a module without weights: a library's model, a script's, a folder's.

    timm:resnet50                    a model of timm, torchvision or transformers
    torchvision:resnet50
    hf:path/to/folder                the class that a folder's config.json names
    script.py:build                  a function without arguments, a class or a module of a script

Modules are built on the meta device; one whose constructor needs numbers is built on the CPU and
then moved there. A script's or folder's module whose forward needs numbers is counted where they
are: on the CPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ridgeline.errors import InputError, in_words
from ridgeline.measure.network.directory import class_of, read_config
from ridgeline.measure.network.libraries import LibraryModel, find_library_model
from ridgeline.measure.network.scripted import model_of, run_script, split_script
from ridgeline.measure.network.without_cuda import cuda_means
from ridgeline.models.vision.folder import CLASSIFIER

USUAL_SIZE = (224, 224)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModule:
    """A module, and the image that its authors made it for."""

    module: torch.nn.Module
    name: str
    image_size: tuple[int, int] = USUAL_SIZE
    channels: int = 3
    frames: int | None = None
    """Images of one clip, [frames, channels, height, width]; None where it takes single images."""


def build_module(
    source: str, image_size: tuple[int, int] | None = None, *, device: str = "meta"
) -> BuiltModule:
    """The module that `source` names, made for `image_size` where it takes one.

    Args:
        source: See the table above.
        image_size: Height and width.
        device: Where a script's or folder's module shall lie; all others are on the meta device.

    Raises:
        InputError: There is none, or it cannot be built.
    """
    if (script := split_script(source)) is not None:
        return _from_script(*script, device)
    if source.startswith("hf:"):
        return _from_folder(Path(source.removeprefix("hf:")), device)
    if Path(source, "config.json").exists():
        return _from_folder(Path(source), device)
    found = find_library_model(source)
    if found is not None:
        return (_from_timm if found.library == "timm" else _from_torchvision)(found, image_size)
    raise InputError(
        f"unknown vision model {source!r}; give a preset, timm:NAME, torchvision:NAME, a folder"
        " with a config.json, script.py:FUNCTION or an exported program (.pt2)"
    )


def on_meta(build: Callable[[], Any]) -> Any:
    """What `build` makes, on the meta device; it may fail there and work on the CPU."""
    try:
        with torch.device("meta"):
            return build()
    except ImportError:  # no device brings a package, and half an import changes what is said next
        raise
    except Exception:  # constructors call .item() and the like: the CPU's error counts
        return _moved(build())


def _moved(made: Any) -> Any:
    return made.to("meta") if isinstance(made, torch.nn.Module) else made


def _built(build: Callable[[], Any], what: object, device: str = "meta") -> Any:
    try:
        return on_meta(build) if device == "meta" else build()
    except Exception as error:  # a library raises what it likes
        raise InputError(f"{what} cannot be built: {in_words(error)}") from error


def _from_timm(found: LibraryModel, image_size: tuple[int, int] | None) -> BuiltModule:
    module = _built(found.build, found)
    channels, *size = module.default_cfg.get("input_size", (3, *USUAL_SIZE))
    default = (int(size[0]), int(size[1]))
    if image_size not in (None, default):
        # Transformers are built for a size; networks of convolutions take any.
        try:
            module = _built(lambda: found.build(img_size=image_size), found)
        except InputError as error:
            if "img_size" not in str(error):
                raise
    return BuiltModule(module=module, name=found.name, image_size=default, channels=channels)


def _from_torchvision(found: LibraryModel, image_size: tuple[int, int] | None) -> BuiltModule:
    sizes = {} if image_size is None or "vit" not in found.name else {"image_size": image_size[0]}
    module = _built(lambda: found.build(**sizes), found)
    size = _torchvision_size(module, found.name)
    return BuiltModule(module=module, name=found.name, image_size=size)


def _torchvision_size(module: torch.nn.Module, name: str) -> tuple[int, int]:
    torchvision = importlib.import_module("torchvision")
    weights = torchvision.models.get_model_weights(name).DEFAULT
    fixed = getattr(getattr(module, "transform", None), "fixed_size", None)
    if fixed:
        return int(fixed[1]), int(fixed[0])
    transform = weights.transforms()
    size = getattr(transform, "crop_size", None) or getattr(transform, "resize_size", None)
    if size:
        return int(size[0]), int(size[-1])
    least = getattr(getattr(module, "transform", None), "min_size", None)
    return (int(least[0]), int(least[0])) if least else USUAL_SIZE


def _from_folder(folder: Path, device: str) -> BuiltModule:
    config = read_config(folder, "", "train")
    kind = class_of(config)
    module = _built(lambda: getattr(kind, "from_config", kind)(config), folder, device)
    height, width = _image_size(config)
    return BuiltModule(
        module=module,
        name=folder.resolve().name,
        image_size=(height, width),
        channels=getattr(config, "num_channels", 3),
        frames=None if CLASSIFIER in kind.__name__ else getattr(config, "num_frames", None),
    )


def _image_size(config: Any) -> tuple[int, int]:
    """Height and width that a configuration says, or the one of its backbone."""
    inner = (getattr(config, one, None) for one in ("backbone_config", "vision_config"))
    for one in (config, *inner):
        size = getattr(one, "image_size", None)
        if isinstance(size, int):
            return size, size
        if isinstance(size, list | tuple):
            return int(size[0]), int(size[-1])
    return USUAL_SIZE


def _from_script(path: Path, thing: str, device: str) -> BuiltModule:
    with cuda_means(device):
        if device == "meta":
            made = model_of(run_script(path), thing, make=on_meta).to(device)
        else:
            made = model_of(run_script(path), thing).to(device)
    channels = (one.in_channels for one in made.modules() if isinstance(one, torch.nn.Conv2d))
    return BuiltModule(module=made, name=thing or path.stem, channels=next(channels, 3))
