r"""Text of other people's files as text: what would steer a terminal is shown instead.

A name in a trace may hold escape sequences (colours, links, a screen that is wiped), a carriage
return that writes over what stands before it, or marks that turn the direction of reading. All of
them are shown as `\u001b` and the like, wherever text leaves the house: terminals, pages, Markdown,
JSON. New lines and tabs stay.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")

_STEERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, of 7 bits and of 8
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of reading
    "\u2028\u2029\ufeff\ud800-\udfff]"  # lines that are none, marks, halves of a character
)


def visible_text(text: str) -> str:
    r"""The text with what steers a terminal written out.

    >>> visible_text("gemm\x1b[2J\r\u202egpj"), visible_text("two\nlines")
    ('gemm\\u001b[2J\\u000d\\u202egpj', 'two\nlines')
    """
    return _STEERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def visible(value: T) -> T:
    """A document, or a part of one, with every text in it visible."""
    found: Any = value
    if isinstance(value, str):
        found = visible_text(value)
    elif isinstance(value, (list, tuple)):
        found = type(value)(visible(one) for one in value)
    elif is_dataclass(value) and not isinstance(value, type):
        own = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
        changed = {name: visible(old) for name, old in own.items()}
        if any(changed[name] is not own[name] for name in own):
            found = replace(value, **changed)
    return found  # type: ignore[no-any-return]
