"""From what a user names to a module with its weights, in evaluation mode on the CPU.

| MODEL | is |
|---|---|
| a directory with a config.json | a model of transformers, its logits where it classifies images |
| `script.py:name` | a function without arguments, a class, or a module that the script defines |
| `model.pt2` | an exported program |
| `timm:NAME`, `torchvision:NAME`, or a plain name | an architecture; its weights from `--weights` |
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.errors import InputError, MissingExtra, RidgelineError, in_words
from ridgeline.image_files.preprocess import Preprocess, read_preprocess
from ridgeline.measure.network.torchvision_schemas import let_torchvision_import
from ridgeline.models.folder import read_by_library
from ridgeline.models.quiet import quiet_libraries

_LIBRARIES = ("timm", "torchvision")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelToExport:
    """A module, and what its authors say of its images."""

    module: nn.Module
    preprocess: Preprocess | None = None
    """How images become inputs; None where nothing says so."""
    notes: tuple[str, ...] = ()


def load_model(source: str, weights: Path | None = None) -> ModelToExport:
    """The module that `source` names.

    Args:
        source: See the table above.
        weights: A state dict for an architecture by name.

    Raises:
        InputError: There is no such model, or it cannot be built or loaded.
    """
    found = _load(source, weights)
    found.module.requires_grad_(requires_grad=False)
    if not isinstance(found.module, torch.fx.GraphModule):
        found.module.eval()
    return found


def _load(source: str, weights: Path | None) -> ModelToExport:
    script, colon, name = source.rpartition(":")
    if colon and script.endswith(".py"):
        return ModelToExport(module=_weighted(_from_script(Path(script), name), weights, source))
    if source.endswith(".py"):
        return ModelToExport(module=_weighted(_from_script(Path(source), ""), weights, source))
    path = Path(source)
    if path.is_dir():
        return _from_directory(path)
    if path.suffix == ".pt2":
        return ModelToExport(module=_from_program(path))
    if path.exists():
        raise InputError(
            f"MODEL {source}: a file of weights says no architecture; give script.py:function, or"
            f" timm:NAME with --weights {source}"
        )
    return _from_library(source, weights)


def _from_directory(path: Path) -> ModelToExport:
    if not (path / "config.json").is_file():
        raise InputError(f"MODEL {path}: has no config.json; give a model that transformers saved")
    try:
        import transformers
    except ImportError:
        raise MissingExtra("transformers", "compress") from None
    transformers.utils.logging.disable_progress_bar()
    with read_by_library(path, option="MODEL", what="no model of transformers"), quiet_libraries():
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        named = [getattr(transformers, one, None) for one in config.architectures or ()]
        kind = next((one for one in named if one is not None), None)
        kind = kind or transformers.AutoModelForImageClassification
        model, about = kind.from_pretrained(path, output_loading_info=True, local_files_only=True)
    missing = sorted(about.get("missing_keys", ()))
    if missing:
        raise InputError(
            f"MODEL {path}: {len(missing)} tensors that config.json asks for are missing, such as"
            f" {missing[0]}; copy the model again"
        )
    classifies = any(str(one).endswith("ForImageClassification") for one in config.architectures)
    module = Logits(model) if classifies else model
    return ModelToExport(module=module, preprocess=read_preprocess(path))


class Logits(nn.Module):
    """Images to logits, without what transformers wraps them in."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        """[batch, channels, height, width] to [batch, classes]."""
        logits: Tensor = self.model(pixel_values).logits
        return logits


def _from_script(path: Path, name: str) -> nn.Module:
    if not path.is_file():
        raise InputError(f"MODEL {path}: no such script; check the path")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = script  # what it defines is found by name, as in any import
    sys.path.insert(0, str(path.resolve().parent))
    let_torchvision_import()
    try:
        spec.loader.exec_module(script)
        return _made(path, script, name)
    except RidgelineError:
        raise
    except (Exception, SystemExit) as error:  # a user's script raises what it likes
        raise InputError(
            f"MODEL {path} failed: {type(error).__name__}: {in_words(error)}"
        ) from error


def _made(path: Path, script: Any, name: str) -> nn.Module:
    if not name:
        name = _only_module(path, script)
    if not hasattr(script, name):
        raise InputError(f"MODEL {path}: defines no {name!r}; it has {_offers(script)}")
    made = getattr(script, name)
    if not isinstance(made, nn.Module) and callable(made):
        made = made()
    if not isinstance(made, nn.Module):
        what = f"{type(made).__module__}.{type(made).__qualname__}"
        raise InputError(f"MODEL {path}:{name} gives {what}; give what returns an nn.Module")
    return made


def _only_module(path: Path, script: Any) -> str:
    """The one model of a script that names none."""
    modules = [key for key, value in vars(script).items() if isinstance(value, nn.Module)]
    if len(modules) == 1:
        return str(modules[0])
    raise InputError(f"MODEL {path}: say which, as {path}:NAME; it has {_offers(script)}")


def _offers(script: Any) -> str:
    own = [
        key
        for key, value in vars(script).items()
        if isinstance(value, nn.Module)
        or (callable(value) and getattr(value, "__module__", "") == script.__name__)
    ]
    return ", ".join(own) or "no function, class or module of its own"


def _from_program(path: Path) -> nn.Module:
    if not path.is_file():
        raise InputError(f"MODEL {path}: no such file; check the path")
    try:
        return torch.export.load(path).module()
    except Exception as error:  # torch raises what its readers raise
        raise InputError(
            f"MODEL {path}: no exported program ({in_words(error)}); give what torch.export.save"
            " wrote"
        ) from error


def _from_library(source: str, weights: Path | None) -> ModelToExport:
    library, colon, name = source.rpartition(":")
    if colon and library not in _LIBRARIES:
        raise InputError(f"MODEL {source}: {library} is not known; give timm: or torchvision:")
    for one in [library] if colon else _LIBRARIES:
        if importlib.util.find_spec(one) is None:
            if colon:
                raise InputError(f"MODEL {source}: {one} is not installed; run: pip install {one}")
            continue
        let_torchvision_import()
        found = (_from_timm if one == "timm" else _from_torchvision)(name)
        if found is not None:
            module = _weighted(found.module, weights, source)
            note = "random weights: give --weights FILE" if weights is None else ""
            return ModelToExport(
                module=module, preprocess=found.preprocess, notes=(note,) if note else ()
            )
    raise InputError(
        f"MODEL {source}: no such directory, script or file, and no model of timm or torchvision"
        " that are installed; give one of these"
    )


def _from_timm(name: str) -> ModelToExport | None:
    import timm

    if not timm.is_model(name.partition(".")[0]):
        return None
    module = timm.create_model(name, pretrained=False)
    said = timm.data.resolve_model_data_config(module)
    height, width = said["input_size"][1:]
    return ModelToExport(
        module=module,
        preprocess=Preprocess(
            resize=int(height / said["crop_pct"]),
            crop=(int(height), int(width)),
            interpolation=said["interpolation"],
            mean=tuple(said["mean"]),
            std=tuple(said["std"]),
            origin="timm",
        ),
    )


def _from_torchvision(name: str) -> ModelToExport | None:
    import torchvision

    if name not in torchvision.models.list_models():
        return None
    return ModelToExport(module=torchvision.models.get_model(name, weights=None))


def _weighted(module: nn.Module, weights: Path | None, source: str) -> nn.Module:
    if weights is None:
        return module
    state = read_weights(weights)
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"--weights {weights}: does not fit {source} ({in_words(error)}); give its own state"
            " dict"
        ) from None
    return module


def read_weights(path: Path) -> dict[str, Tensor]:
    """A state dict out of .safetensors, or out of what torch.save wrote, whatever is around it.

    Raises:
        InputError: It cannot be read, or holds none.
    """
    if not path.is_file():
        raise InputError(f"--weights {path}: no such file; check the path")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the readers of torch and safetensors raise what they like
        raise InputError(f"--weights {path}: cannot be read ({in_words(error)})") from None
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not any(isinstance(one, Tensor) for one in found.values()):
        raise InputError(f"--weights {path}: holds no state dict; give what state_dict() returned")
    return {key.removeprefix("module."): value for key, value in found.items()}
