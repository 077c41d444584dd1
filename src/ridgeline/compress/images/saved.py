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

from ridgeline.checkpoints.writing import move_into_place
from ridgeline.compress.evaluate.loaded import check_directory
from ridgeline.compress.pruning.channels import resized
from ridgeline.compress.pruning.channels.prune import Smaller
from ridgeline.compress.saved.torch_export import package
from ridgeline.errors import InputError, MissingExtra, RidgelineError
from ridgeline.models.folder import read_by_library
from ridgeline.models.quiet import quiet_libraries

CODE = "pruned_model.py"
PROGRAM = "model.pt2"
_ALONG = ("preprocessor_config.json", "README.md", "LICENSE")


def load(option: str, directory: Path) -> Any:
    """A classifier in evaluation mode, pruned or not; no code of the directory is run.

    Raises:
        InputError: It is none, or files are missing, broken or do not fit.
    """
    check_directory(option, directory)
    try:
        from transformers import AutoConfig
        from transformers.utils import logging as notices
    except ImportError:
        raise MissingExtra("transformers", "compress") from None
    notices.disable_progress_bar()
    with read_by_library(directory, option=option, what="no image classifier"), quiet_libraries():
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
        kind = _class_of(config)
        if hasattr(config, "channels"):
            kind = type("PrunedModel", (resized.Resized, kind), {})
        model, about = kind.from_pretrained(
            directory, config=config, output_loading_info=True, local_files_only=True
        )
    missing = sorted(about.get("missing_keys", ()))
    if missing:
        raise InputError(
            f"{option} {directory}: {len(missing)} tensors that config.json asks for are missing,"
            f" such as {missing[0]}; copy the model again"
        )
    return model.eval()


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


def export_program(model: Any, pixel_values: Tensor, path: Path) -> None:
    """Write a torch.export package: images [batch, …] to logits [batch, classes], batch free.

    Raises:
        InputError: torch.export cannot follow the model.
        RidgelineError: The package computes something else.
    """
    whole = _Logits(model).eval()

    def check(loaded: nn.Module) -> None:
        with torch.no_grad():
            wanted, made = whole(pixel_values[:3]), loaded(pixel_values[:3])
        if not bool(torch.allclose(wanted, made, rtol=1e-4, atol=1e-4)):
            raise RidgelineError(f"{path} computes other logits than PyTorch; nothing was written")

    free = {"pixel_values": {0: torch.export.Dim("batch")}}
    package("--export torch-export", whole, pixel_values[:2], free, path, check)


def _class_of(config: Any) -> Any:
    """The class of transformers behind a configuration; KeyError where it classifies no images."""
    from transformers import AutoModelForImageClassification

    found = AutoModelForImageClassification._model_mapping[type(config)]
    if not isinstance(found, tuple):
        return found
    named = [one for one in found if one.__name__ in (config.architectures or ())]
    return (named or found)[0]


class _Logits(nn.Module):
    """Images to logits, without what transformers wraps them in."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        logits: Tensor = self.model(pixel_values).logits
        return logits


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
