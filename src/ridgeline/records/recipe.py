"""A training run as TOML: what to train, on what, laid out how.

`ridgeline plan training --write` makes one; the data are left to the user, the optimizer has the
defaults of published runs (Touvron et al., "LLaMA", arXiv 2302.13971, section 2.3 and table 2).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.records.store import write_atomically


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file: a mistyped key is an error that names it."""


class RecipeModel(Section, frozen=True, kw_only=True):
    """What is trained."""

    config: str
    """A preset's name, or the path of a Hugging Face `config.json`."""


class RecipeData(Section, frozen=True, kw_only=True):
    """What it is trained on."""

    path: str = ""
    """Left to the user: a file, a folder or a dataset's name."""
    seq: int
    """Tokens in one sequence."""
    tokens: float | None = None
    """Of the whole run."""


class RecipeOptimizer(Section, frozen=True, kw_only=True):
    """AdamW with a warm-up and a cosine decay."""

    name: Literal["adamw"] = "adamw"
    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    warmup_steps: int = 2000
    final_learning_rate: float
    """At the end of the cosine."""


class RecipeCluster(Section, frozen=True, kw_only=True):
    """On what it is trained; bandwidths per device and direction."""

    devices: str
    """As `COUNTxDEVICE`."""
    domain_size: int
    domain_bytes_per_second: float
    network_bytes_per_second: float


class RecipePrediction(Section, frozen=True, kw_only=True):
    """What theory said when the recipe was written."""

    step_seconds: float
    tokens_per_second_per_gpu: float
    peak_bytes: float
    steps: int | None = None


class Recipe(Section, frozen=True, kw_only=True):
    """The whole file."""

    model: RecipeModel
    data: RecipeData
    layout: Layout
    optimizer: RecipeOptimizer
    cluster: RecipeCluster
    prediction: RecipePrediction | None = None


_HEADER = """\
# A training run, written by `ridgeline plan training`. Fill in data.path; the learning rate is a
# starting point for models of this size.

"""


def write_recipe(path: Path, recipe: Recipe) -> None:
    """Write the recipe; the file is whole or not there."""
    content = msgspec.toml.encode(_without_nulls(msgspec.to_builtins(recipe)))
    try:
        write_atomically(path, _HEADER.encode() + content)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def read_recipe(path: Path) -> Recipe:
    """Read a recipe; a bad file is an InputError that names the file and the key."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Recipe)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, msgspec.MsgspecError, ValueError, InputError) as error:
        raise InputError(f"{path}: {error}") from None


def _without_nulls(value: Any) -> Any:
    """TOML has no null: absent keys are absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value
