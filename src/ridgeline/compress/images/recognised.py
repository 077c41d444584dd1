"""Whether MODEL is one for images, told by its name and files without importing any model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ridgeline.compress.apply import LEDGER
from ridgeline.errors import InputError
from ridgeline.models.vision.folder import is_image_folder
from ridgeline.records.input_file import read_json

ONNX = "model.onnx"
"""The file of a compressed classifier in integers, beside its ledger."""
PROGRAM = "model.pt2"
"""The file of one that stays PyTorch's, beside its ledger."""


def is_image_model(model: Path, checkpoint: Path | None = None) -> bool:
    """Whether MODEL is for images: a script's function, a program, a classifier's directory."""
    if checkpoint is not None or ".py:" in str(model) or model.suffix == ".pt2":
        return True
    if (model / LEDGER).is_file() and any((model / name).is_file() for name in (ONNX, PROGRAM)):
        return True
    try:
        config = read_json(model / "config.json", dict[str, Any])
    except InputError:
        return False  # whoever needs it as the model's says what is wrong with it
    return isinstance(config.get("channels"), dict) or is_image_folder(model)
