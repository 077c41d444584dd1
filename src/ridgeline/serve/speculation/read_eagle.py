"""Reads an EAGLE head of any form: our own training's, or one as it was published."""

from __future__ import annotations

from pathlib import Path

from ridgeline.errors import InputError, in_words
from ridgeline.serve.speculation.eagle import FACTS, WEIGHTS, EagleHead
from ridgeline.serve.speculation.eagle3 import Eagle3Head
from ridgeline.serve.speculation.eagle_facts import EagleFacts
from ridgeline.serve.speculation.head_files import read_head
from ridgeline.serve.speculation.published_eagle import CONFIG, read_published


def read_eagle(path: str | Path) -> EagleHead:
    """A head that `save` wrote, or one in the folder that it was published in.

    Raises:
        InputError: The folder does not have one.
    """
    folder = Path(path)
    if not (folder / FACTS).exists() and (folder / CONFIG).exists():
        return _published(folder)
    otherwise = "EAGLE head ({}); train one with: ridgeline draft-heads --form eagle"
    return read_head(_empty, EagleFacts, folder / WEIGHTS, folder / FACTS, otherwise)


def _published(folder: Path) -> EagleHead:
    facts, weights = read_published(folder)
    try:
        head = _empty(facts)
        head.load_state_dict(weights)
    except (RuntimeError, ValueError) as error:
        why = f"weights of another form than {CONFIG} says ({in_words(error)})"
        raise InputError(f"{folder}: {why}") from None
    return head


def _empty(facts: EagleFacts) -> EagleHead:
    """A head of the form that facts tell of."""
    return EagleHead(facts) if facts.draft_vocab is None else Eagle3Head(facts)
