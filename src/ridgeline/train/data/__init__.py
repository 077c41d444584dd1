"""What a run is trained on: text, tokenised once, in an order that no world size changes.

    preparation.py  text → token shards, once → PreparedData
    sources.py    documents of text files, JSONL, Parquet, saved datasets
    tokenizer.py  which tokenizer, or a new one
    tokenise.py   one tokenising process; workers.py runs several
    shards.py     the files, and all of them as one stream of tokens
    order.py      which sequence each sample of the run is
    sequences.py  one sample: packed or padded, with or without document masks
    loader.py     a rank's batches, read ahead and resumable

What may not enter: models, losses, collectives. Tokenising imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.train.data.loader import Loader, validation_batches
    from ridgeline.train.data.preparation import PreparedData, prepare, verify
    from ridgeline.train.data.tokenizer import train_tokenizer

_HOMES = {
    "Loader": "loader",
    "PreparedData": "preparation",
    "prepare": "preparation",
    "train_tokenizer": "tokenizer",
    "validation_batches": "loader",
    "verify": "preparation",
}
__all__ = ["Loader", "PreparedData", "prepare", "train_tokenizer", "validation_batches", "verify"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
