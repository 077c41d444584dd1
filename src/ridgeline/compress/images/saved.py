"""Directories of image classifiers: read, and written so that transformers loads them.

The configuration of a model class has no place for widths that differ from layer to layer. So
config.json says them under `channels`, and `pruned_model.py` beside it brings the class to them as
it is built; it is `pruning/channels/resized.py` and three lines more:

    AutoModelForImageClassification.from_pretrained(directory, trust_remote_code=True)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ridgeline.checkpoints.writing import move_into_place
from ridgeline.compress.evaluate.loaded import check_directory
from ridgeline.compress.images.recognised import PROGRAM
from ridgeline.compress.pruning.channels import resized
from ridgeline.compress.pruning.channels.prune import Smaller
from ridgeline.compress.saved.torch_export import package
from ridgeline.compress.vision.batches import (
    Batch,
    free_batch,
    inputs_of,
    moved,
    part_of,
    rows_of,
)
from ridgeline.compress.vision.onnx_program import write_program
from ridgeline.errors import InputError, RidgelineError, in_words
from ridgeline.measure.network.directory import load_directory, read_config
from ridgeline.models.folder import read_by_library
from ridgeline.models.quiet import quiet_libraries

CODE = "pruned_model.py"
_ALONG = ("preprocessor_config.json", "README.md", "LICENSE")


def load(option: str, directory: Path) -> Any:
    """A classifier in evaluation mode, pruned or not; no code of the directory is run.

    Raises:
        InputError: It is none, or files are missing, broken or do not fit.
    """
    check_directory(option, directory)
    config = read_config(directory, option, "compress")
    with read_by_library(directory, option=option, what="no image classifier"):
        kind = _class_of(config)
    if hasattr(config, "channels"):
        kind = type("PrunedModel", (resized.Resized, kind), {})
    return load_directory(directory, option, kind, config)


def save(smaller: Smaller, source: Path, out: Path) -> None:
    """Write a pruned classifier of transformers; `out` is whole or not there.

    Args:
        smaller: Of a model that `load` read from `source`.
        source: What lies beside the weights there is copied.
        out: Must not exist.
    """
    model: Any = smaller.model
    kind = _class_of(model.config)
    aside = out.with_name(f".{out.name}.saving")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with quiet_libraries():
            model.save_pretrained(aside)
        config = json.loads((aside / "config.json").read_text(encoding="utf-8"))
        config["architectures"] = [kind.__name__]
        config["auto_map"] = {"AutoModelForImageClassification": f"{Path(CODE).stem}.PrunedModel"}
        config["channels"] = _together(config.get("channels"), smaller)
        (aside / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (aside / CODE).write_text(_code(kind.__name__), encoding="utf-8")
        for name in _ALONG:
            if (source / name).is_file():
                shutil.copy2(source / name, aside / name)
        move_into_place(aside, out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def export_to(whole: nn.Module, example: Batch, path: Path) -> None:
    """Write a module as a torch.export package (.pt2) or as ONNX, with a free batch.

    A graph that two images made need not hold for one: a tracker's groups follow from the batch,
    and torch.export then guards against a batch of one. Such a module is written for one image.

    Args:
        whole: Images [batch, …] to logits [batch, classes], in evaluation mode.
        example: Real images [batch, channels, height, width]; 2 or more leave the batch free.
        path: Its suffix says which.

    Raises:
        InputError: The exporter cannot follow the model.
        RidgelineError: The package computes something else.
    """
    floats = (one for one in whole.parameters() if one.is_floating_point())
    inputs = moved(example, next(floats, torch.empty(0)))
    write = write_program if path.suffix == ".onnx" else _write_package
    if rows_of(inputs) > 1:
        try:
            return write(whole, inputs, free_batch(whole, inputs, torch.export.Dim.DYNAMIC), path)
        except InputError:
            path.unlink(missing_ok=True)
    return write(whole, inputs_of(part_of(inputs, slice(1))), None, path)


def _write_package(whole: nn.Module, inputs: tuple[Tensor, ...], free: Any, path: Path) -> None:
    def check(loaded: nn.Module) -> None:
        with torch.no_grad():
            wanted, made = whole(*inputs), loaded(*inputs)
        if not is_the_same(wanted, made):
            raise RidgelineError(f"{path} computes other logits than PyTorch; nothing was written")
        if free is not None:
            check_one_image(whole, loaded, inputs, path)

    package("torch-export", whole, inputs, free, path, check)


def check_one_image(whole: nn.Module, loaded: nn.Module, batch: Batch, path: Path) -> None:
    """Raise InputError unless what was made of a batch answers its first image as eager does."""
    first = inputs_of(part_of(batch, slice(1)))
    try:
        with torch.no_grad():
            same = is_the_same(whole(*first), loaded(*first))
    except Exception as error:  # guards of a program, or a runtime that meets sizes that differ
        raise InputError(f"{path.name} takes no single image: {in_words(error)}") from error
    if not same:
        raise InputError(f"{path.name} answers a single image otherwise than PyTorch")


def is_the_same(wanted: Any, made: Any) -> bool:
    """Whether two programs answer alike, but for the order of sums."""
    pairs = list(zip(_tensors(wanted), _tensors(made), strict=True))
    return all(
        one.shape == other.shape
        and bool(torch.allclose(one, other, rtol=1e-3, atol=1e-3, equal_nan=True))
        for one, other in pairs
    )


def _tensors(output: Any) -> list[Tensor]:
    return [one for one in tree_leaves(output) if isinstance(one, Tensor)]


def save_program(model: nn.Module, example: Batch, out: Path) -> None:
    """Write a model that is no transformers' one: a program and its weights, in a new folder.

    Raises:
        InputError: torch.export cannot follow it.
    """
    from safetensors.torch import save_file

    out.mkdir(parents=True)
    if not isinstance(model, torch.fx.GraphModule):
        model.eval()  # a program has no other mode, and says so
    export_to(model, example, out / PROGRAM)
    tensors = {name: one.detach().cpu().clone() for name, one in model.state_dict().items()}
    save_file(tensors, out / "weights.safetensors")


def _class_of(config: Any) -> Any:
    """The class of transformers behind a configuration; KeyError where it classifies no images."""
    from transformers import AutoModelForImageClassification

    found = AutoModelForImageClassification._model_mapping[type(config)]
    if not isinstance(found, tuple):
        return found
    named = [one for one in found if one.__name__ in (config.architectures or ())]
    return (named or found)[0]


def _together(before: Mapping[str, Any] | None, smaller: Smaller) -> dict[str, Any]:
    """Widths after this pruning and those before it."""
    counts = {name: dict(one) for name, one in ((before or {}).get("counts") or {}).items()}
    for name, one in smaller.counts.items():
        counts.setdefault(name, {}).update(one)
    return {"shapes": {**((before or {}).get("shapes") or {}), **smaller.shapes}, "counts": counts}


def _code(kind: str) -> str:
    """The code of the file that transformers loads beside config.json."""
    source = Path(resized.__file__).read_text(encoding="utf-8")
    return (
        f"{source}\n\nfrom transformers import {kind}  # noqa: E402\n\n\n"
        f"class PrunedModel(Resized, {kind}):\n"
        f'    """{kind} with the widths of config.json."""\n'
    )
