"""A text file as tokens, and the protocol that goes with figures made from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgeline.compress.evaluate.windows import Window, windows
from ridgeline.errors import InputError
from ridgeline.records import input_file
from ridgeline.records.compression import Protocol

USUAL_CONTEXT = 2048
"""Of published perplexities; less where a model's positions end before."""


@dataclass(frozen=True, slots=True)
class TextWindows:
    """What a model is judged on."""

    tokens: Tensor
    """[T] int64"""
    windows: list[Window]
    protocol: Protocol


def read_text(option: str, path: Path) -> str:
    """A file's text.

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
