"""A directory that transformers wrote: its configuration, its class, its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ridgeline.errors import InputError, MissingExtra
from ridgeline.models.folder import check_model_folder, read_by_library, read_whole
from ridgeline.runtimes.capture.torchvision_schemas import let_torchvision_import


class Logits(nn.Module):
    """Images to logits, without what a library wraps them in."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        """The logits, [images, classes]."""
        output: Any = self.model(pixel_values)
        logits: Tensor = getattr(output, "logits", output)
        return logits


def read_config(folder: Path, option: str, extra: str) -> Any:
    """The configuration of a directory.

    Args:
        folder: Holds a config.json.
        option: What named it, for messages.
        extra: Of Ridgeline, that brings transformers.

    Raises:
        InputError: There is none, or it cannot be read.
    """
    try:
        from transformers import AutoConfig
        from transformers.utils import logging as notices
    except ImportError:
        raise MissingExtra("transformers", extra) from None
    what = f"{option} {folder}".strip()
    if not (folder / "config.json").is_file():
        raise InputError(f"{what}: has no config.json; give a model that transformers saved")
    notices.disable_progress_bar()
    check_model_folder(folder)
    let_torchvision_import()  # classes with a backbone of timm import it
    with read_by_library(folder, option=option, what="no model of transformers"):
        return AutoConfig.from_pretrained(folder, local_files_only=True)


def class_of(config: Any) -> Any:
    """The class of transformers that a configuration names, or that classifies its images.

    Raises:
        InputError: What the class needs cannot be imported.
    """
    import transformers

    names = config.architectures or ()
    with read_by_library(config.name_or_path, what=f"{', '.join(names)} of transformers"):
        named = [getattr(transformers, one, None) for one in names]
    kind = next((one for one in named if one is not None), None)
    return kind or transformers.AutoModelForImageClassification


def load_directory(folder: Path, option: str, kind: Any, config: Any) -> Any:
    """The model with its weights, in evaluation mode; no code of the directory is run.

    Args:
        folder: Holds its weights.
        option: What named it, for messages.
        kind: The class.
        config: What `read_config` gave.

    Raises:
        InputError: Weights are missing, broken or do not fit.
    """
    model = read_whole(
        kind, folder, option=option, what="no such model", config=config, local_files_only=True
    )
    return model.eval()
