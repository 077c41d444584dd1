"""From what a user names to a module with its weights, in evaluation mode on the CPU.

| MODEL | is |
|---|---|
| a directory with a config.json | a model of transformers, its logits where it classifies images |
| `script.py:name` | a function without arguments, a class, or a module that the script defines |
| `model.pt2` | an exported program |
| `timm:NAME`, `torchvision:NAME`, or a plain name | an architecture; its weights from `--weights` |
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ridgeline.errors import InputError
from ridgeline.image_files.preprocess import Preprocess, read_preprocess
from ridgeline.measure.network.directory import Logits, class_of, load_directory, read_config
from ridgeline.measure.network.libraries import find_library_model
from ridgeline.measure.network.program import load_program
from ridgeline.measure.network.scripted import model_of, run_script, split_script
from ridgeline.measure.network.weights import load_weights

_OPTION = "MODEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelToExport:
    """A module, and what its authors say of its images."""

    module: nn.Module
    preprocess: Preprocess | None = None
    """How images become inputs; None where nothing says so."""
    notes: tuple[str, ...] = ()


def load_model(source: str, weights: Path | None = None) -> ModelToExport:
    """The module that `source` names, with the same weights in every process.

    A script that draws its weights draws them from the same seed each time; one that goes past the
    usual generators makes another model in every worker, and fails its comparison.

    Args:
        source: See the table above.
        weights: A state dict for an architecture by name.

    Raises:
        InputError: There is no such model, or it cannot be built or loaded.
    """
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the generator that scripts draw from
    torch.manual_seed(0)
    found = _load(source, weights)
    found.module.requires_grad_(requires_grad=False)
    if not isinstance(found.module, torch.fx.GraphModule):
        found.module.eval()
    return found


def _load(source: str, weights: Path | None) -> ModelToExport:
    path = Path(source)
    if (script := split_script(source)) is not None:
        file, name = script
        module = model_of(run_script(file, _OPTION), name, _OPTION)
        return ModelToExport(module=_weighted(module, weights, source))
    if path.is_dir():
        return _from_directory(path)
    if path.suffix == ".pt2":
        return ModelToExport(module=load_program(path, _OPTION).module())
    if path.exists():
        raise InputError(
            f"MODEL {source}: a file of weights says no architecture; give script.py:function, or"
            f" timm:NAME with --weights {source}"
        )
    return _from_library(source, weights)


def _from_directory(path: Path) -> ModelToExport:
    config = read_config(path, _OPTION, "compress")
    model = load_directory(path, _OPTION, class_of(config), config)
    named = config.architectures or ()
    classifies = any(str(one).endswith("ForImageClassification") for one in named)
    module = Logits(model) if classifies else model
    return ModelToExport(module=module, preprocess=read_preprocess(path))


def _from_library(source: str, weights: Path | None) -> ModelToExport:
    found = find_library_model(source, _OPTION)
    if found is None:
        raise InputError(
            f"MODEL {source}: no such directory, script or file, and no model of timm or"
            " torchvision that are installed; give one of these"
        )
    module = found.build()
    return ModelToExport(
        module=_weighted(module, weights, source),
        preprocess=found.preprocess(module),
        notes=("random weights: give --weights FILE",) if weights is None else (),
    )


def _weighted(module: nn.Module, weights: Path | None, source: str) -> nn.Module:
    if weights is not None:
        load_weights(module, weights, "--weights", source)
    return module
