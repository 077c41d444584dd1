"""A folder from which `ridgeline train recipe.toml` trains a very small model within seconds."""

from __future__ import annotations

import json
from pathlib import Path

from tests.train.tiny_models import CONFIGS

from ridgeline.records.recipe_file import anchored, read_recipe

_RECIPE = """
[model]
config = "model"
[data]
path = "text"
tokenizer = "bpe:300"
seq = 32
holdout = 2
workers = 0
[layout]
micro_batch = 2
global_batch = 8
precision = "fp32"
compiled = false
[optimizer]
learning_rate = 3e-3
final_learning_rate = 3e-4
warmup_steps = 2
"""
_HELD_OUT, _HELD_OUT_CHARACTERS = "decoder", 1500
"""The text that a holdout of 2 takes; whole, it costs three times the nine steps before it."""


def write_small_run(place: Path, rest: str) -> Path:
    """The recipe, with the tables `rest` behind it, and its model and text beside it."""
    (place / "recipe.toml").write_text(_RECIPE + rest)
    (place / "model").mkdir()
    config = CONFIGS["llama-tied"] | {"vocab_size": 300}
    (place / "model" / "config.json").write_text(json.dumps(config))
    (place / "text").mkdir()
    for source in sorted(Path(json.__file__).parent.glob("*.py")):
        length = _HELD_OUT_CHARACTERS if source.stem == _HELD_OUT else None
        name = source.with_suffix(".txt").name
        (place / "text" / name).write_text(source.read_text()[:length])
    return place


def train_alone(place: Path) -> None:
    """As a rank of `tests.train.processes`: train the recipe of `place` into `out1`."""
    from ridgeline.train.session import train_as_rank

    train_as_rank(anchored(read_recipe(place / "recipe.toml"), place), place / "out1")
