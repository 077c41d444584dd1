"""The two files of a trained head: what a reader must know first, and the weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from ridgeline.errors import InputError, in_words
from ridgeline.records.input_file import read_json
from ridgeline.records.overwriting import note_input
from ridgeline.records.store import write_atomically


class SavedHead(Protocol):
    """Weights that guess, and facts that say of what form they are."""

    @property
    def facts(self) -> msgspec.Struct:
        """What a reader must know before it reads the weights."""

    def state_dict(self) -> dict[str, Any]:
        """The weights by name."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        """Take weights by name; raises RuntimeError where they are others than asked."""


Head = TypeVar("Head", bound=SavedHead)
Facts = TypeVar("Facts", bound=msgspec.Struct)


def write_head(head: SavedHead, folder: Path, weights: str, facts: str) -> None:
    """Write both files; what was there before stays until each is written."""
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    named = {name: one.contiguous() for name, one in head.state_dict().items()}
    write_atomically(folder / weights, save(named))
    told = msgspec.json.format(msgspec.json.encode(head.facts), indent=2)
    write_atomically(folder / facts, told)


def read_head(
    make: Callable[[Facts], Head], form: type[Facts], weights: Path, facts: Path, otherwise: str
) -> Head:
    """A head that `write_head` wrote.

    Args:
        make: The head that facts describe.
        form: The record of the facts.
        weights: The file of the weights.
        facts: The file of the facts.
        otherwise: What is missing and how it is made: "draft heads (…); train them with: …",
            with one `{}` for the reason.

    Raises:
        InputError: The folder does not have one.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        head = make(read_json(facts, form))
        note_input(weights)
        head.load_state_dict(load_file(weights))
    except (OSError, InputError, SafetensorError, RuntimeError, ValueError) as error:
        why = otherwise.format(in_words(error))
        raise InputError(f"{facts.parent} has no {why}") from None
    return head
