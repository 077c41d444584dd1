"""What each rank of the pruning tests runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.train.checkpoint.resume_worker import Outcome, start

from ridgeline.train.ranks import join, leave


def run_cases(argument: dict[str, Any]) -> dict[str, Outcome]:
    """Each recipe from its start to its end."""
    torch.set_num_threads(1)
    outcomes = {}
    for name, recipe in argument["cases"].items():
        ranks = join(recipe.layout, timeout_seconds=60)
        outcomes[name] = start(recipe, Path(argument["folder"]) / name, ranks)
    leave()
    return outcomes
