"""A text file as tokens, in windows that a model reads one by one, and the protocol of the figures.

Windows begin every `stride` tokens and are `context` long; in each, only the tokens that no window
before it reached are scored, so all but the first window's have at least `context − stride` tokens
before them. The protocol of Hugging Face's "Perplexity of fixed-length models", counted exactly:
a window's very first token has nothing before it and is never scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.records import input_file
from ridgeline.records.compression import Protocol


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens `begin` to `end` of a text; those from `first` on are scored."""

    begin: int
    end: int
    first: int

    @property
    def scored(self) -> int:
        """The number of tokens that it scores."""
        return self.end - self.first


def windows(num_tokens: int, context: int, stride: int) -> list[Window]:
    """All windows of a text.

    Raises:
        InputError: The stride would skip tokens, or the text does not fill one window.

    >>> [(one.begin, one.first, one.end) for one in windows(10, 4, 3)]
    [(0, 1, 4), (3, 4, 7), (6, 7, 10)]
    """
    if context < 2:
        raise InputError(f"--context {context}: at least 2 tokens are needed")
    if not 1 <= stride <= context:
        raise InputError(f"--stride {stride}: give 1 to --context {context}")
    if num_tokens < context:
        raise InputError(
            f"the text has {num_tokens} tokens, fewer than one window of {context}; give more text"
            " or a smaller --context"
        )
    found = []
    reached = 0
    for begin in range(0, num_tokens, stride):
        end = min(begin + context, num_tokens)
        found.append(Window(begin, end, max(reached, begin + 1)))
        reached = end
        if end == num_tokens:
            break
    return [one for one in found if one.scored]


def batches(found: list[Window], tokens: int) -> Iterator[list[Window]]:
    """Windows of one length together, about `tokens` tokens at a time."""
    for length, alike in groupby(found, lambda one: one.end - one.begin):
        same = list(alike)
        count = max(1, tokens // length)
        for start in range(0, len(same), count):
            yield same[start : start + count]


USUAL_CONTEXT = 2048
"""The context of published perplexities; less where a model's positions end before."""


@dataclass(frozen=True, slots=True)
class TextWindows:
    """What a model is judged on."""

    tokens: Tensor
    """The tokens, [T] int64."""
    windows: list[Window]
    protocol: Protocol


def read_text(option: str, path: Path) -> str:
    """Read the text of a file.

    Raises:
        InputError: It cannot be read, is not UTF-8, or is empty.
    """
    text = input_file.read_text(path, option=option)
    if not text.strip():
        raise InputError(f"{option} {path}: holds no text")
    return text


def text_windows(
    text: str,
    name: str,
    tokenizer: Any,
    *,
    context: int | None,
    stride: int | None,
    positions: int | None,
) -> TextWindows:
    """Tokens and windows of a text.

    Args:
        text: Whole; tokenised as one document, with what the tokenizer puts around it.
        name: Of the text, for the protocol.
        tokenizer: Of the model.
        context: Tokens of a window; None: 2,048, or the model's positions where they are fewer.
        stride: None: as long as a window, so that windows do not overlap.
        positions: Of the model.

    Raises:
        InputError: Windows longer than the model's positions, or than the text.
    """
    if context is None:
        context = min(USUAL_CONTEXT, positions or USUAL_CONTEXT)
    if positions is not None and context > positions:
        raise InputError(f"--context {context}: the model has positions for {positions} tokens")
    ids = tokenizer(text, verbose=False).input_ids
    found = windows(len(ids), context, stride or context)
    protocol = Protocol(
        text=name,
        context=context,
        stride=stride or context,
        bos=tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id,
        tokens=len(ids),
        scored=sum(one.scored for one in found),
        words=len(text.split()),
        bytes=len(text.encode()),
    )
    return TextWindows(torch.tensor(ids), found, protocol)
