"""From what a user names to a module without weights: a library's model, a script's, a folder's.

    timm:resnet50                    a model of timm, torchvision or transformers
    torchvision:resnet50
    hf:path/to/folder                the class that a folder's config.json names
    script.py:build                  a function without arguments, a class or a module of a script

Modules are built on the meta device; one whose constructor needs numbers is built on the CPU and
then moved there.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ridgeline.errors import InputError, MissingExtra, in_words
from ridgeline.measure.network import LIBRARIES
from ridgeline.measure.network.torchvision_schemas import let_torchvision_import

USUAL_SIZE = (224, 224)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModule:
    """A module, and the image that its authors made it for."""

    module: torch.nn.Module
    name: str
    image_size: tuple[int, int] = USUAL_SIZE
    channels: int = 3


def build_module(source: str, image_size: tuple[int, int] | None = None) -> BuiltModule:
    """The module that `source` names, made for `image_size` where it takes one."""
    library, colon, name = source.partition(":")
    if colon and library in LIBRARIES:
        return _from_library(library, name, image_size)
    if colon and library == "hf":
        return _from_folder(Path(name))
    if ".py:" in source:
        path, _, thing = source.rpartition(":")
        return _from_script(Path(path), thing)
    if Path(source, "config.json").exists():
        return _from_folder(Path(source))
    for library in LIBRARIES:
        if importlib.util.find_spec(library) is not None and _has(library, source):
            return _from_library(library, source, image_size)
    raise InputError(
        f"unknown vision model {source!r}; give a preset, timm:NAME, torchvision:NAME, a folder"
        " with a config.json, script.py:FUNCTION or an exported program (.pt2)"
    )


def on_meta(build: Callable[[], Any], what: str) -> Any:
    """What `build` makes, on the meta device; it may fail there and work on the CPU."""
    try:
        with torch.device("meta"):
            return build()
    except Exception:  # constructors call .item() and the like: the CPU's error counts
        try:
            return _moved(build())
        except Exception as error:  # as above
            raise InputError(f"{what} cannot be built: {in_words(error)}") from error


def _moved(made: Any) -> Any:
    return made.to("meta") if isinstance(made, torch.nn.Module) else made


def _has(library: str, name: str) -> bool:
    let_torchvision_import()
    if library == "timm":
        return bool(importlib.import_module("timm").is_model(name))
    return name in importlib.import_module("torchvision").models.list_models()


def _from_library(library: str, name: str, image_size: tuple[int, int] | None) -> BuiltModule:
    if importlib.util.find_spec(library) is None:
        raise InputError(f"{library} is not installed; run: pip install {library}")
    let_torchvision_import()
    return (_from_timm if library == "timm" else _from_torchvision)(name, image_size)


def _from_timm(name: str, image_size: tuple[int, int] | None) -> BuiltModule:
    timm = importlib.import_module("timm")
    if not timm.is_model(name.partition(".")[0]):
        near = timm.list_models(f"*{name.partition('.')[0][:8]}*")[:4]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise InputError(f"timm has no model {name!r}{hint}")
    what = f"timm:{name}"
    module = on_meta(lambda: timm.create_model(name), what)
    channels, *size = module.default_cfg.get("input_size", (3, *USUAL_SIZE))
    default = (int(size[0]), int(size[1]))
    if image_size not in (None, default):
        # Transformers are built for a size; networks of convolutions take any.
        try:
            module = on_meta(lambda: timm.create_model(name, img_size=image_size), what)
        except InputError as error:
            if "img_size" not in str(error):
                raise
    return BuiltModule(module=module, name=name, image_size=default, channels=channels)


def _from_torchvision(name: str, image_size: tuple[int, int] | None) -> BuiltModule:
    torchvision = importlib.import_module("torchvision")
    if name not in torchvision.models.list_models():
        raise InputError(f"torchvision has no model {name!r}")
    sizes = {} if image_size is None or "vit" not in name else {"image_size": image_size[0]}
    nothing = {"weights": None}
    models = torchvision.models
    if any(
        name in models.list_models(module=one) for one in (models.detection, models.segmentation)
    ):
        nothing["weights_backbone"] = None
    module = on_meta(
        lambda: torchvision.models.get_model(name, **nothing, **sizes), f"torchvision:{name}"
    )
    return BuiltModule(module=module, name=name, image_size=_torchvision_size(module, name))


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


def _from_folder(folder: Path) -> BuiltModule:
    if importlib.util.find_spec("transformers") is None:
        raise MissingExtra("transformers", "train")
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: {in_words(error)}") from error
    kinds = [getattr(transformers, one, None) for one in config.architectures or ()]
    kind = next((one for one in kinds if one is not None), None)

    def build() -> Any:
        if kind is not None:
            return kind(config)
        return transformers.AutoModelForImageClassification.from_config(config)

    module = on_meta(build, str(folder))
    size = getattr(config, "image_size", None) or USUAL_SIZE
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return BuiltModule(
        module=module,
        name=folder.resolve().name,
        image_size=(int(height), int(width)),
        channels=getattr(config, "num_channels", 3),
    )


def _from_script(path: Path, thing: str) -> BuiltModule:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    let_torchvision_import()
    try:
        spec.loader.exec_module(script)
    except (Exception, SystemExit) as error:  # a user's script raises what it likes
        raise InputError(f"{path} failed: {type(error).__name__}: {in_words(error)}") from error
    finally:
        sys.path.pop(0)
    if not hasattr(script, thing):
        raise InputError(f"{path} defines no {thing!r}")
    made = getattr(script, thing)
    if isinstance(made, torch.nn.Module):
        made = made.to("meta")
    elif callable(made):
        made = on_meta(made, f"{path}:{thing}")
    if not isinstance(made, torch.nn.Module):
        raise InputError(f"{path}:{thing} gave {type(made).__name__}, not an nn.Module")
    channels = (one.in_channels for one in made.modules() if isinstance(one, torch.nn.Conv2d))
    return BuiltModule(module=made, name=thing, channels=next(channels, 3))
