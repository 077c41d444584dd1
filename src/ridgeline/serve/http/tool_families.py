"""Which family's way of writing tool calls a server reads; `tool_families.toml` has them all."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from importlib import resources
from typing import Any, Literal

import msgspec

from ridgeline.errors import InputError
from ridgeline.serve.http.chat_template import ChatTemplate

OPTION = "--tool-call-parser"
AUTO, USUAL = "auto", "hermes"


class ToolFamily(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a family of models writes calls of tools."""

    shape: Literal["json", "objects", "tags", "python", "notation"]
    open: str
    """What stands before a call, or before a list of calls."""
    close: str = ""
    """What stands behind a call, or behind all calls of the shape objects."""
    sign: str = ""
    """What shows in a chat template that it is this family's; empty: `open` does."""
    also: tuple[str, ...] = ()
    """Other names of the family."""
    head: str = ""
    """The expression that finds the name where it stands before the arguments."""
    argument: str = ""
    """The expression that finds a key and a value of the shape tags."""
    name_key: str = "name"
    """The key of the name within an object; empty: the only key is the name."""
    quote: str = ""
    """The mark around texts of the shape notation."""
    drop: tuple[str, ...] = ()
    """Marks around calls that are no text."""
    strict_open: str = ""
    """What stands before a call's arguments, with NAME for the function's."""
    strict_close: str = ""
    source: str

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks that a reader must see in the text."""
        return tuple(one for one in (self.open, self.close, *self.drop) if one)

    @property
    def is_whole_text(self) -> bool:
        """Calls are the whole completion, not a part of it between marks."""
        return self.shape == "python" and not self.close

    def name_in(self, head: str) -> str | None:
        """The function's name in what stands before the arguments."""
        found = re.match(self.head, head) if self.head else None
        return None if found is None else found["name"]


@functools.cache
def tool_families() -> dict[str, ToolFamily]:
    """Every known family by its name."""
    text = resources.files(__package__).joinpath("tool_families.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, ToolFamily])


def check_tool_parser(name: str) -> str:
    """A family's own name, from any of its names. Raises InputError where no family has it."""
    families = tool_families()
    if name == AUTO or name in families:
        return name
    for own, family in families.items():
        if name in family.also:
            return own
    known = [AUTO, *families, *(one for family in families.values() for one in family.also)]
    raise InputError(f"{OPTION} {name}: unknown; known are {', '.join(known)}")


def choose_tool_family(name: str, template: ChatTemplate) -> tuple[str, ToolFamily]:
    """The family whose calls a server reads."""
    families = tool_families()
    if name == AUTO:
        others = ((one, family) for one, family in families.items() if one != USUAL)
        found = (one for one, family in others if (family.sign or family.open) in template.text)
        name = next(found, USUAL)
    return name, families[name]


def special_tokens(marks: Iterable[str], backend: Any) -> frozenset[str]:
    """The special tokens of a tokenizer proper, where marks are made of them; else none.

    Text then keeps special tokens, so that marks are seen; the others are to be taken out of it.
    """
    added = backend.get_added_tokens_decoder().values()
    special = frozenset(token.content for token in added if token.special)
    return special if any(one in mark for mark in marks for one in special) else frozenset()
