"""How a model's makers want it sampled: `generation_config.json` beside its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.input_file import read_json

FILE = "generation_config.json"


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What requests get that do not say otherwise; None: nothing is said."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None

    def given(self) -> dict[str, float | int]:
        """The defaults that are said, by name."""
        return {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None
        }


_LIMITS = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-9, 1.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
    "max_new_tokens": (1, 2**31 - 1),
}


def read_generation_defaults(folder: Path) -> GenerationDefaults:
    """Read the file of a model's folder; without one nothing is said.

    Raises:
        InputError: It is no JSON object, or a value is none that a request could have.
    """
    path = folder / FILE
    if not path.is_file():
        return GenerationDefaults()
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
    return GenerationDefaults(**said)
