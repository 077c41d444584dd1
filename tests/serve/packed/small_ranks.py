"""Ranks in whose processes models of any size are kept packed."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from tests.warm_scripts import run_rank, start_rank_warm

from ridgeline.serve.packed import entries

CACHE = "CACHE_OF_SMALL_RANKS"
"""Names the folder in the environment of the ranks."""


def run_rank_that_keeps() -> None:
    """In its process: a rank that keeps its share of a model, however small that is."""
    folder = Path(os.environ[CACHE])
    entries.cache_folder = lambda: folder
    entries.LEAST_BYTES = 0
    run_rank()


start_rank_that_keeps = functools.partial(
    start_rank_warm, run="tests.serve.packed.small_ranks:run_rank_that_keeps"
)
