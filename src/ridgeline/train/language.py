"""Language modelling as a task: token shards in, a model with its tokenizer out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch.distributed as dist
from torch import nn

from ridgeline.checkpoints.tokenizer import read_tokenizer
from ridgeline.records.recipe import Recipe
from ridgeline.train.data.loader import Loader, validation_batches
from ridgeline.train.data.preparation import PreparedData, prepare
from ridgeline.train.export import save_model
from ridgeline.train.folder import TOKENS
from ridgeline.train.ranks import Ranks
from ridgeline.train.task import LearningTask


def language_modelling(
    recipe: Recipe, folder: Path, ranks: Ranks, tell: Callable[[str], None]
) -> LearningTask:
    """Prepare the text of a recipe and stand ready to read it. Every rank must call it.

    Raises:
        InputError: The text cannot be used.
    """
    prepared = _prepare_tokens(recipe, folder, ranks, tell)
    return LearningTask(
        recipe=recipe,
        feed=Loader(prepared, recipe, ranks),
        held_out=partial(validation_batches, prepared, recipe, ranks),
        save=partial(_save, recipe, ranks, prepared),
    )


def _prepare_tokens(
    recipe: Recipe, folder: Path, ranks: Ranks, tell: Callable[[str], None]
) -> PreparedData:
    """Tokens, made by one process of each machine while the others wait."""
    if ranks.local_rank == 0:
        prepare(recipe, folder / TOKENS, tell)
    dist.barrier()
    return prepare(recipe, folder / TOKENS, tell)


def _save(
    recipe: Recipe,
    ranks: Ranks,
    prepared: PreparedData,
    modules: Sequence[nn.Module],
    folder: Path,
) -> None:
    save_model(modules, recipe, ranks, folder, read_tokenizer(prepared.tokenizer))
