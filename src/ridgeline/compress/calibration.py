"""Text as sequences of tokens, the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.models.folder import read_by_library
from ridgeline.records.input_file import read_text

_TEXTS = ("*.txt", "*.md", "*.py", "*.rst", "*.json", "*.jsonl")
"""Of a folder, files that are read."""


def tokens(
    model: Path, text: Path, *, sequences: int = 128, length: int = 512, seed: int = 0
) -> Tensor:
    """[sequences, length] int64: pieces of the text, drawn evenly from all of it.

    Args:
        model: WeightReader with the tokenizer.
        text: A file, or a folder of text files.
        sequences: At most; fewer where the text is short.
        length: Tokens of each; at most the model's context.
        seed: Where pieces begin within their share of the text.

    Raises:
        InputError: No text, too little of it, or no tokenizer.
    """
    from transformers import AutoConfig, AutoTokenizer

    with read_by_library(model, what="no tokenizer that can be read"):
        tokenizer = AutoTokenizer.from_pretrained(model)
        config = AutoConfig.from_pretrained(model)
    context = getattr(config, "max_position_embeddings", None) or length
    length = min(length, context)
    whole = _content(text)
    ids = torch.tensor(tokenizer(whole, add_special_tokens=False, verbose=False)["input_ids"])
    count = min(sequences, len(ids) // length)
    if not count:
        raise InputError(
            f"--calibration {text}: {len(ids)} tokens; at least one sequence of {length} is needed"
        )
    generator = torch.Generator().manual_seed(seed)
    share = len(ids) // count
    offsets = torch.randint(0, share - length + 1, (count,), generator=generator)
    starts = torch.arange(count) * share + offsets
    return torch.stack([ids[start : start + length] for start in starts.tolist()])


def _content(text: Path) -> str:
    paths = [text]
    if text.is_dir():
        paths = sorted(path for pattern in _TEXTS for path in text.rglob(pattern))
    if not paths:
        raise InputError(f"{text}: no text files in it ({', '.join(_TEXTS)})")
    return "\n".join(read_text(path, option="--calibration") for path in paths)
