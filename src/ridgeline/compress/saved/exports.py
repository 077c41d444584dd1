"""A saved model once more in other programs' formats, by the names that `--export` takes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError

FILES = {
    "gguf-q8_0": "model.q8_0.gguf",
    "gguf-q4_0": "model.q4_0.gguf",
    "gguf-f16": "model.f16.gguf",
    "onnx": "model.onnx",
    "onnx-int8": "model.int8.onnx",
    "torch-export": "model.pt2",
    "2:4": "model.2of4",
}
"""Format → its file, or folder, in the output directory."""


def check_formats(formats: Sequence[str]) -> None:
    """Raise `InputError` for a format that is not offered."""
    for name in formats:
        if name not in FILES:
            near = difflib.get_close_matches(name, FILES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(FILES)}"
            raise InputError(f"--export {name}: not offered; {hint}")


def export(name: str, source: Path, out: Path) -> Path:
    """Write a model directory in one of the formats.

    Args:
        name: One of `FILES`.
        source: Dense or compressed-tensors.
        out: Folder; returns the file in it.

    Raises:
        InputError: The format cannot hold this model.
    """
    path = out / FILES[name]
    if name.startswith("gguf-"):
        from ridgeline.compress.saved import gguf

        kind: Any = name.removeprefix("gguf-")
        gguf.export(source, path, kind)
    elif name == "2:4":
        from ridgeline.compress.saved import two_of_four

        two_of_four.export(source, path)
    elif name == "torch-export":
        from ridgeline.compress.saved import torch_export

        torch_export.export(source, path)
    else:
        from ridgeline.compress.saved import onnx_model

        if name == "onnx-int8" and not _has_int8(source):
            raise InputError(
                f"--export onnx-int8: {source} has no int8 weights; compress it by --scheme"
                " w8a8-static or w8a16-channel in the same command"
            )
        onnx_model.export(source, path)
    return path


def _has_int8(directory: Path) -> bool:
    from ridgeline.checkpoints.compressed_tensors import quantisation_of

    groups = quantisation_of(directory).get("config_groups") or {}
    forms = [group.get("weights") or {} for group in groups.values()]
    return any(form.get("type") == "int" and form.get("num_bits") == 8 for form in forms)
