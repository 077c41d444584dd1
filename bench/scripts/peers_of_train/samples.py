"""The token file that `ridgeline train` prepared, as a dataset for other trainers."""

from pathlib import Path

import torch

from ridgeline.records.recipe_file import read_recipe
from ridgeline.train.data.preparation import prepare


class TokenDataset(torch.utils.data.Dataset):
    """Packed sequences of the same tokens; DataLoader shuffles nothing, as the steps are few."""

    def __init__(self, folder: Path, size: int):
        recipe = read_recipe(folder / "recipe.toml")
        prepared = prepare(recipe, folder / "recipe" / "tokens", lambda _: None)
        (self.stream,) = prepared.sources
        self.seq = recipe.data.seq
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        # Far apart, so that a batch is not one file.
        start = index * 7919 * self.seq % (self.stream.num_tokens - self.seq - 1)
        tokens = torch.from_numpy(self.stream.read(start, start + self.seq + 1).astype("int64"))
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}
