"""Ranks of a run whose loss is no number on some batches; started by `test_failures.py`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from ridgeline.errors import RidgelineError
from ridgeline.records.recipe import Recipe
from ridgeline.records.recipe_file import anchored, read_recipe
from ridgeline.records.training_run import read_log
from ridgeline.train.data.loader import Loader
from ridgeline.train.data.preparation import prepare
from ridgeline.train.parallel.plain import PlainPasses
from ridgeline.train.ranks import join, leave
from ridgeline.train.session import train_as_rank
from ridgeline.train.survive.events import skipped_batches
from ridgeline.train.survive.guard import RollBack


def check(folder: Path) -> None:
    """A bad batch is left out by the next start; with too many, one line says so."""
    changes = ["run.steps=12", "run.log_every=1", "checkpoint.every_steps=4"]
    recipe = anchored(read_recipe(folder / "recipe.toml", changes), folder)
    out = folder / "bad"
    bad = {_first_tokens(recipe, out, 6)}
    met: list[bytes] = []
    plain = PlainPasses.run

    def poisoned(self: Any, batches: Any, targets: int) -> torch.Tensor:
        loss = plain(self, batches, targets)
        met.append(bytes(batches[0].input_ids.numpy()))
        return loss * math.nan if met[-1] in bad else loss

    PlainPasses.run = poisoned  # type: ignore[method-assign]
    assert _rolled_back(recipe, out) == "step 7: the loss is nan"
    assert [batch.samples for batch in skipped_batches(out)] == [6 * 8]
    met.clear()
    train_as_rank(recipe, out)
    assert not bad & set(met)
    assert json.loads((out / "run.json").read_text())["steps"] == 12
    (noted,) = [line for line in read_log(out) if line.note]
    assert (noted.step, noted.note) == (7, "left out the batch of step 7: the loss is nan")
    assert all(math.isfinite(line.loss) for line in read_log(out))
    changes = [*changes, "survive.max_rollbacks=1", "run.steps=16"]
    few = anchored(read_recipe(folder / "recipe.toml", changes), folder)
    bad.add(_first_tokens(recipe, out, 13))
    try:
        train_as_rank(few, out)
    except RidgelineError as error:
        assert "survive.max_rollbacks" in str(error)  # noqa: PT017 - no pytest in a rank
    else:
        raise AssertionError("nothing stopped the run")


def _rolled_back(recipe: Recipe, out: Path) -> str:
    try:
        train_as_rank(recipe, out)
    except RollBack as bad:
        return str(bad)
    raise AssertionError("nothing was rolled back")


def _first_tokens(recipe: Recipe, out: Path, step: int) -> bytes:
    """Of the first micro-batch of a step."""
    ranks = join(recipe.layout)
    loader = Loader(prepare(recipe, out / "tokens", lambda _: None), recipe, ranks)
    for _ in range(step):
        next(loader)
    found = bytes(next(loader)[0].input_ids.numpy())
    leave()
    return found
