"""The small files of a Hugging Face model's folder, looked at before a library reads them.

transformers reads JSON without a limit and says little of what is wrong in it; what is no JSON,
nested without end, or no table is told here, in one line, for every command that opens a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.records.input_file import read_json, read_text
from ridgeline.records.overwriting import note_input

_TABLES = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "preprocessor_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
)
_TEXTS = ("chat_template.jinja",)


def check_model_folder(folder: Path) -> None:
    """Nothing is asked of a name of the hub, which is no folder here.

    Raises:
        InputError: A file of the folder is not what its name says.
    """
    if not folder.is_dir():
        return
    note_input(folder)
    if (folder / "config.json").exists():
        _check_kind(folder / "config.json")
    for name in _TABLES:
        if (folder / name).exists():
            read_json(folder / name, dict[str, Any], cure="copy the model again")
    for name in _TEXTS:
        if (folder / name).exists():
            read_text(folder / name, cure="copy the model again")


def _check_kind(path: Path) -> None:
    config = read_json(path, dict[str, Any], cure="copy the model again")
    kind = config.get("model_type")
    if not isinstance(kind, str) and not (kind is None and "auto_map" in config):
        raise InputError(f"{path}: its model_type is {kind!r}; copy the model again")
