"""Whose a configuration is that somebody gave in place of a recipe, told by its keys alone.

Nothing of it is carried over: what such a file leaves to its program's defaults would be guessed.
Checked against every example of axolotl, LLaMA-Factory, torchtune and DeepSpeedExamples.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.input_file import read_text, too_deep

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
