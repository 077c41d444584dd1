"""Small corpora and stand-ins that the tests of the data room share."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import torch

from ridgeline.records.layout import Layout
from ridgeline.records.recipe import (
    Recipe,
    RecipeData,
    RecipeModel,
    RecipeOptimizer,
    RecipeRun,
)
from ridgeline.train.data.shards import ShardWriter, TokenStream

END = 1


def recipe(layout: Layout | None = None, seed: int = 0, **data: Any) -> Recipe:
    return Recipe(
        model=RecipeModel(config="gpt2"),
        data=RecipeData(**({"seq": 8, "workers": 0} | data)),
        layout=layout or Layout(),
        optimizer=RecipeOptimizer(learning_rate=1e-3, final_learning_rate=1e-4),
        run=RecipeRun(seed=seed),
    )


def place(layout: Layout, index: int = 0) -> Any:
    """What the loader asks of `Ranks`, for the data rank `index` of `layout`."""
    return SimpleNamespace(
        layout=layout,
        device=torch.device("cpu"),
        index=lambda axis: {"data": index}[axis],
        size=lambda axis: {"data": layout.dp}[axis],
    )


def stream(folder: Path, documents: list[list[int]], shard_tokens: int = 10**9) -> TokenStream:
    """Documents (without their end) as shards; a shard is closed inside a document when full."""
    shards = []
    writer, held = ShardWriter(folder, "train-00000", 2), 0
    for document in documents:
        left = np.array([*document, END])
        first = True
        while len(left):
            room = shard_tokens - held
            writer.add(left[:room], starts_document=first)
            held += len(left[:room])
            left, first = left[room:], False
            if held == shard_tokens:
                shards.append(writer.close())
                writer, held = ShardWriter(folder, f"train-{len(shards):05d}", 2), 0
    shards.append(writer.close())
    return TokenStream.of(folder, tuple(s for s in shards if s.tokens), 2)


def with_data(whole: Recipe, **data: Any) -> Recipe:
    return msgspec.structs.replace(whole, data=msgspec.structs.replace(whole.data, **data))


def write_texts(folder: Path, count: int = 12) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        lines = [f"def f{number}_{i}(x):\n    return x + {i * number}\n" for i in range(20)]
        (folder / f"part{number:02d}.txt").write_text("".join(lines))
    return folder
