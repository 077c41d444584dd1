"""The file of a recipe: read and written, its paths found, its values replaced one by one.

A configuration of another program, given in place of a recipe, is known by its keys. Nothing of it
is carried over: what such a file leaves to its program's defaults would be guessed. Checked against
every example of axolotl, LLaMA-Factory, torchtune and DeepSpeedExamples.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.errors import InputError, in_words
from ridgeline.records.input_file import read_text, read_toml, too_deep
from ridgeline.records.mistyped import meant
from ridgeline.records.recipe import Recipe
from ridgeline.records.store import write_atomically

_HEADER = """\
# A training run, written by `ridgeline plan training`. Fill in data.path; the learning rate is a
# starting point for models of this size.

"""


def write_recipe(path: Path, recipe: Recipe) -> None:
    """Write the recipe; the file is whole or not there."""
    try:
        write_atomically(path, _HEADER.encode() + recipe_toml(recipe).encode())
    except OSError as error:
        raise InputError(f"{path}: {in_words(error)}") from None


def recipe_toml(recipe: Recipe) -> str:
    """The recipe as a file has it, without a header."""
    return msgspec.toml.encode(_without_nulls(msgspec.to_builtins(recipe))).decode()


def read_recipe(path: Path, assignments: Sequence[str] = ()) -> Recipe:
    """Read a recipe; a bad file is an InputError that names the file and the key.

    A configuration of another program is called that.

    Args:
        path: Of the file.
        assignments: Values that take the place of the file's, each as `table.key=value`.
    """
    try:
        tables = read_toml(path, dict[str, Any])
    except InputError:
        _refuse_others(path)
        raise
    _assign(tables, assignments)
    try:
        return msgspec.convert(tables, type=Recipe)
    except (msgspec.ValidationError, InputError, ValueError) as error:
        _refuse_others(path)
        said = f"{in_words(error)}{meant(error, Recipe)}"
        raise InputError(f"{_at_fault(path, assignments)}: {said}") from None


def _refuse_others(path: Path) -> None:
    other = whose(path)
    if other is not None:
        raise InputError(f"{path}: is {other}") from None


def _at_fault(path: Path, assignments: Sequence[str]) -> str:
    """Where the values of a bad recipe stand."""
    given = ", ".join(assignments)
    try:
        msgspec.convert(read_toml(path, dict[str, Any]), type=Recipe)
    except (msgspec.ValidationError, InputError, ValueError):
        return f"{path} with {given}" if given else str(path)
    return given


_PATHS = (
    ("model", "config"),
    ("model", "checkpoint"),
    ("data", "path"),
    ("data", "tokenizer"),
    ("data", "validation"),
    ("images", "path"),
    ("images", "validation"),
    ("distillation", "teacher"),
    ("memory", "offload_path"),
    ("run", "stack"),
)


def anchored(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with its relative paths made absolute, so that it can be run from anywhere.

    A relative path is looked for beside the recipe (`folder`), then from where we are; what is in
    neither place is left as it is: a preset's name, a tokenizer of the hub.
    """
    tables = msgspec.to_builtins(recipe)
    for table, key in _PATHS:
        if tables.get(table):
            tables[table][key] = found_path(tables[table][key], folder)
    for source in (tables["data"] or {}).get("sources", ()):
        source["path"] = found_path(source["path"], folder)
    for stage in (tables["distillation"] or {}).get("stages", ()):
        stage["teacher"] = found_path(stage["teacher"], folder)
    file, colon, name = tables["model"]["script"].rpartition(":")
    tables["model"]["script"] = f"{found_path(file, folder)}{colon}{name}"
    return msgspec.convert(tables, type=Recipe)


def found_path(text: str, folder: Path) -> str:
    """A relative path as `anchored` finds it."""
    if not text:
        return text
    places = (place / Path(text).expanduser() for place in (folder, Path()))
    return next((str(place.resolve()) for place in places if _exists(place)), text)


def _exists(path: Path) -> bool:
    """Whether a path is there; of a range of files, `shard-{000..031}.tar`, their folder."""
    return path.exists() or ("{" in path.name and path.parent.is_dir())


def _assign(tables: dict[str, Any], assignments: Sequence[str]) -> None:
    """Replace values, each as `table.key=value`; the value is TOML or plain text."""
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        table, dot, key = name.strip().partition(".")
        if not equals or not dot:
            raise InputError(f"{assignment!r} is not TABLE.KEY=VALUE, such as run.steps=100")
        place = tables.setdefault(table, {})
        if isinstance(place, dict):  # what is none is told when all is read
            place[key] = _value(text.strip())


def _value(text: str) -> Any:
    """What the text means in TOML, or the text itself where it means nothing there."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _without_nulls(value: Any) -> Any:
    """TOML has no null: absent keys are absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value


_CURE = (
    "a recipe is TOML of our own: `ridgeline plan training --write recipe.toml` makes one for a"
    " model and a cluster, and `ridgeline doctor -- COMMAND` measures that program as it is"
)
_MARKS: tuple[tuple[str, frozenset[str]], ...] = tuple(
    (name, frozenset(keys.split()))
    for name, keys in (
        ("DeepSpeed", "zero_optimization"),
        ("DeepSpeed", "train_batch_size"),
        ("DeepSpeed", "train_micro_batch_size_per_gpu"),
        ("axolotl", "base_model sequence_len"),
        ("axolotl", "base_model datasets"),
        ("LLaMA-Factory", "model_name_or_path stage"),
        ("LLaMA-Factory", "model_name_or_path finetuning_type"),
        ("LLaMA-Factory", "model_name_or_path template"),
        ("LLaMA-Factory", "model model_class"),
        ("torchtitan", "job training"),
        ("torchtitan", "parallelism training"),
        ("NeMo", "exp_manager"),
        ("torchtune", "checkpointer tokenizer"),
        ("torchtune", "checkpointer model"),
        ("accelerate", "compute_environment"),
        ("accelerate", "distributed_type"),
        ("accelerate", "fsdp_config"),
        ("transformers' Trainer", "per_device_train_batch_size"),
        ("Lightning", "trainer model"),
        ("DeepSpeed or transformers' Trainer", "gradient_accumulation_steps"),
        ("Hydra", "_target_"),
    )
)
"""Whose it is → keys that it has, all of them; the first that fits."""
_TOP_KEY = re.compile(r"^[\"']?([A-Za-z_][\w.-]*)[\"']?\s*:(?:\s|$)", re.MULTILINE)


def whose(path: Path) -> str | None:
    """What a file is that is no recipe, as a clause with what to do; None: nothing that we know."""
    try:
        keys = _keys(read_text(path))
    except InputError:
        return None
    if {"apiVersion", "kind"} <= keys:
        return "a manifest of Kubernetes; `ridgeline launch --check` judges those"
    if "model_type" in keys and keys & {"hidden_size", "n_embd", "d_model", "architectures"}:
        return "the configuration of a model; a recipe names it under model.config"
    name = next((name for name, marks in _MARKS if marks <= keys), None)
    return None if name is None else f"a configuration of {name}; {_CURE}"


def _keys(text: str) -> frozenset[str]:
    """The keys at the top, as JSON, TOML or YAML has them."""
    found: Any
    try:
        found = None if too_deep(text.encode()) else msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        try:
            found = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError):
            return frozenset(_TOP_KEY.findall(text))
    return frozenset(found) if isinstance(found, dict) else frozenset()
