"""One door for "which model?": a well-known name, a `config.json`, or sizes typed in place."""

from __future__ import annotations

import os
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.models.config import read_config
from ridgeline.models.flags import model_from_text
from ridgeline.models.presets import known_presets, preset
from ridgeline.models.spec import ModelSpec
from ridgeline.models.vision.presets import find_name


def load_model(name_or_path: str | Path) -> ModelSpec:
    """The model that the user means.

    A path that exists is read (a folder: its `config.json`), unless it is a bare name that a
    preset has; `./gpt2` reads the folder. A text with `=` gives sizes.

    >>> load_model("gpt2").layers
    12
    >>> load_model("layers=24,hidden=2048,heads=16,vocab=50304").head_dim
    128
    """
    text = os.fspath(name_or_path)
    path = Path(text)
    bare = os.sep not in text and not text.endswith(".json")
    if "=" in text and not path.exists():
        return model_from_text(text)
    if bare and known_presets().names.get(text) is not None:
        return preset(text)
    if (text and path.exists()) or text.endswith(".json") or text.startswith((".", os.sep, "~")):
        return read_config(path.expanduser())
    network = None if known_presets().names.get(text) else find_name(text)
    if network is not None:
        raise InputError(
            f"model {text!r} is a vision network, and this works on transformers of tokens; of"
            f" images there is the roofline: ridgeline roofline {network}"
        )
    return preset(text)
