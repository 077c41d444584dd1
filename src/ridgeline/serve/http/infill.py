"""How a model is asked for what stands between two texts; `infill.toml` has the families.

Models that were trained on it have tokens of their own for it (Bavarian et al., "Efficient Training
of Language Models to Fill in the Middle", 2022, section 3). A model whose tokenizer has none was
not, and a suffix is refused.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

import msgspec


class InfillFamily(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tokens around the two texts."""

    before: str
    behind: str
    fill: str
    behind_first: bool = False
    """Whether the text behind the gap is given first."""
    ends: tuple[str, ...] = ()
    """Further tokens with which an answer ends, where they are known."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InfillTokens:
    """The same as ids of one tokenizer."""

    before: int
    behind: int
    fill: int | None
    behind_first: bool
    stop_ids: tuple[int, ...]
    """What ends an answer beside the model's own end."""

    def prompt(self, before: tuple[int, ...], behind: tuple[int, ...]) -> tuple[int, ...]:
        """The prompt that asks for what stands between two texts."""
        parts = [(self.before, *before), (self.behind, *behind)]
        if self.behind_first:
            parts.reverse()
        return (*parts[0], *parts[1], *(() if self.fill is None else (self.fill,)))


@functools.cache
def infill_families() -> dict[str, InfillFamily]:
    """Every known family by its name."""
    text = resources.files(__package__).joinpath("infill.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, InfillFamily])


def infill_tokens(backend: Any, vocab: int) -> InfillTokens | None:
    """The tokens of the family that a tokenizer has; None: of none.

    Args:
        backend: The tokenizer of the `tokenizers` library.
        vocab: How many tokens the model knows; a tokenizer may have more.
    """
    known = functools.partial(_id_below, backend, vocab)
    for family in infill_families().values():
        marks = [one for one in (family.before, family.behind, family.fill) if one]
        ids = [one for mark in marks if (one := known(mark)) is not None]
        if len(ids) < len(marks):
            continue
        ends = map(known, family.ends)
        return InfillTokens(
            before=ids[0],
            behind=ids[1],
            fill=ids[2] if family.fill else None,
            behind_first=family.behind_first,
            stop_ids=(*ids, *(one for one in ends if one is not None)),
        )
    return None


def _id_below(backend: Any, vocab: int, token: str) -> int | None:
    found: int | None = backend.token_to_id(token)
    return found if found is not None and found < vocab else None
