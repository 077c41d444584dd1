"""How a model's makers want it sampled: `generation_config.json` beside its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.records.input_file import read_json

FILE = "generation_config.json"


_LIMITS = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-9, 1.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}
"""The fields that are read, and the least and the most that a request could ask for."""


def read_generation_defaults(folder: Path) -> dict[str, float | int]:
    """Read what a model's folder says for requests that do not; nothing without the file.

    Raises:
        InputError: It is no JSON object, or a value is none that a request could have.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    found = read_json(path, dict[str, Any])
    said = {name: found[name] for name in _LIMITS if found.get(name) is not None}
    for name, value in said.items():
        low, high = _LIMITS[name]
        whole = isinstance(low, int)
        kinds = (int,) if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
            raise InputError(
                f"{path}: {name} is {value!r}, which no request could ask for; correct it, or"
                " leave the file's defaults with --generation-config none"
            )
    return said
