"""A Hugging Face model's folder before and while a library reads it: what is wrong, in one line.

transformers reads JSON without a limit and says little of what is wrong in it; what is no JSON,
nested without end, or no table is told here, for every command that opens a model. What it cannot
make a model of it raises as errors of any type.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, RidgelineError
from ridgeline.models.quiet import quiet_libraries
from ridgeline.patches import patch
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
_NOT_FETCHED = "LocalEntryNotFoundError"
"""What the hub's client raises offline; its own words speak of a setting that nobody made."""
_LONGEST_WORDS = 300
_BARE = (LookupError, AttributeError, TypeError, ArithmeticError)
"""Errors that often say no more than a key or a name."""
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


@contextmanager
def read_by_library(model: str | Path, *, option: str = "", what: str = "") -> Iterator[None]:
    """Within, a library reads a model's files: whatever it raises is for what they are.

    What it logs below an error is not shown.

    Args:
        model: A folder, or a name of the hub.
        option: That named it.
        what: Of it is read.

    Raises:
        InputError: In place of any error that is none of ours.
    """
    where = f"{option} {model}".strip()
    if Path(model).is_file():
        raise InputError(
            f"{where}: is a file, where a model's folder or a name of the hub is wanted; models in"
            " one file (GGUF) are not read"
        )
    if not Path(model).is_dir():
        stay_offline_without_hub()
    try:
        with quiet_libraries():
            yield
    except RidgelineError:
        raise
    except Exception as error:  # a model's files can be wrong in any way
        absent = "" if Path(model).is_dir() else "no such directory; as a hub id: "
        raise InputError(f"{where}: {absent}{what and what + ': '}{_words(error)}") from None


def read_whole(
    kind: Any, model: str | Path, *, option: str = "", what: str = "", **how: Any
) -> Any:
    """A model that a library reads whole, with every weight that it has.

    transformers draws at random what the files lack, and only warns.

    Args:
        kind: The library's class, which has `from_pretrained`.
        model: A folder, or a name of the hub.
        option: That named it.
        what: Of it is read.
        how: What the class is told besides.

    Raises:
        InputError: It cannot be read, or weights are missing.
    """
    with read_by_library(model, option=option, what=what):
        found, about = kind.from_pretrained(model, output_loading_info=True, **how)
    missing = sorted(about.get("missing_keys", ()))
    if missing:
        where = f"{option} {model}".strip()
        raise InputError(
            f"{where}: {len(missing)} tensors that config.json asks for are missing, such as"
            f" {missing[0]}; copy the model again"
        )
    return found


def _words(error: Exception) -> str:
    """All lines as one; of an error that may say a key only, its type too."""
    if type(error).__name__ == _NOT_FETCHED:
        return "it was not fetched before, and the hub does not answer or is not to be asked"
    text = " ".join(str(error).split())[:_LONGEST_WORDS].rstrip(". ")
    if isinstance(error, TypeError | AttributeError) and text:
        return f"a value of another kind than the library expects ({text})"
    if isinstance(error, _BARE) or not text:
        return f"{type(error).__name__} {text}".rstrip()
    return text


def _check_kind(path: Path) -> None:
    config = read_json(path, dict[str, Any], cure="copy the model again")
    kind = config.get("model_type")
    if not isinstance(kind, str) and not (kind is None and "auto_map" in config):
        raise InputError(f"{path}: its model_type is {kind!r}; copy the model again")


_PATIENCE_SECONDS = 5.0


@cache
def stay_offline_without_hub() -> None:
    """Leave this process and those that it starts to the cache if the hub does not answer.

    Its library would ask again for half a minute about each file of a model; told that it is
    offline, it looks into its cache and says so.
    """
    try:
        from huggingface_hub import constants, get_session, is_offline_mode
    except ModuleNotFoundError:  # without the library nothing asks the hub
        return
    if is_offline_mode():
        return
    session = get_session()
    client = import_module(type(session).__module__.partition(".")[0])  # httpx, or its successor
    try:
        session.head(constants.ENDPOINT, timeout=_PATIENCE_SECONDS)
    except client.HTTPError:
        patch("huggingface_hub.constants:HF_HUB_OFFLINE", lambda _: True)
        os.environ["HF_HUB_OFFLINE"] = "1"
