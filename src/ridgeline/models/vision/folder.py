"""Whether a Hugging Face folder holds a network for images, told by its config.json alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.records.input_file import read_json

CLASSIFIER = "ForImageClassification"
_TASKS = (
    CLASSIFIER, "ForVideoClassification", "ForObjectDetection",
    "ForSegmentation", "ForSemanticSegmentation", "ForInstanceSegmentation",
    "ForUniversalSegmentation", "ForDepthEstimation", "ForPoseEstimation", "ForKeypointDetection",
    "ForKeypointMatching", "ForImageSuperResolution", "ForImageMatting", "ForMaskedImageModeling",
)  # fmt: skip
"""How transformers names the classes of networks that take images."""
_OF_IMAGES = ("image_size", "num_channels", "vision_config", "backbone_config")
_OF_TOKENS = ("vocab_size", "text_config")


def class_names(folder: Path) -> list[str] | None:
    """The classes that a folder's config.json names; None where it cannot be read."""
    config = _config(folder)
    return None if config is None else _classes(config)


def is_image_folder(folder: Path) -> bool:
    """Whether a folder's config.json is of a network for images.

    A class without a task (DINOv2, SAM) is known by what its configuration sizes: images and no
    tokens.
    """
    config = _config(folder)
    if config is None:
        return False  # whoever needs it as the model's says what is wrong with it
    if any(task in one for one in _classes(config) for task in _TASKS):
        return True
    return any(one in config for one in _OF_IMAGES) and not any(one in config for one in _OF_TOKENS)


def _config(folder: Path) -> dict[str, Any] | None:
    try:
        return read_json(folder / "config.json", dict[str, Any])
    except InputError:
        return None


def _classes(config: dict[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [str(one) for one in names] if isinstance(names, list) else []
