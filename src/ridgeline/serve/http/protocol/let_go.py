"""Fields of a request that nobody here reads: which of them are let go, and that they are told.

A message that comes back, and a tool, carry what other servers and clients wrote beside them (marks
for a cache, signatures, ids). The template is given none of it, so no token can follow from it: it
is let go, and the reply names it in `X-Without-Effect`. Elsewhere an unknown field may be a
parameter of another server that alters tokens: it is refused, unless the operator says otherwise
(`--unknown-fields ignore`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

MOST_NAMES = 32
"""So many are named; a header is no place for more."""
LONGEST_NAME = 64
_ASKING = frozenset({"prefix"})
"""Fields of messages of other servers that ask for something: never let go there."""


@dataclass(slots=True)
class LetGo:
    """What is let go of one request."""

    everything: bool = False
    """Whether unknown fields are, wherever they stand."""
    names: dict[str, None] = field(default_factory=dict)
    """Their names, in the order in which they came."""

    def takes(self, name: str, place: str) -> bool:
        """Whether an unknown field is let go; if so, it is noted.

        Args:
            name: The field's name.
            place: Where what nobody reads may stand, such as `messages`; empty: elsewhere.
        """
        plain = name.isidentifier() and name.isascii() and len(name) <= LONGEST_NAME
        if not plain or not (self.everything or (place and name not in _ASKING)):
            return False
        if len(self.names) < MOST_NAMES:
            self.names[f"{place}.{name}" if place else name] = None
        return True


def told(place: str, keywords: Iterable[str]) -> list[str]:
    r"""Names for the header that says what had no effect; only those that a header can have.

    >>> told("tools", ["uniqueItems", "a\\r\\nb"])
    ['tools.uniqueItems']
    """
    plain = [one for one in keywords if one.isidentifier() and one.isascii()]
    return [f"{place}.{one[:LONGEST_NAME]}" for one in plain[:MOST_NAMES]]


_CURRENT: ContextVar[LetGo | None] = ContextVar("let_go", default=None)


@contextmanager
def letting_go(found: LetGo) -> Iterator[None]:
    """Note in `found` what is let go of the request that is read meanwhile."""
    token = _CURRENT.set(found)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def is_let_go(name: str, place: str) -> bool:
    """Whether an unknown field of the request that is being read is let go, which is noted."""
    return (_CURRENT.get() or LetGo()).takes(name, place)
