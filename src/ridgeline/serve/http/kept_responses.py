"""Responses that are kept for `previous_response_id` and for who asks for them again.

Conversations are kept in the same way, in a place of their own: a document and its items. All
stand in memory as JSON, bounded together: what was not asked for longest goes first, and all of
them with the server. Where the server has API keys, one that was made with a key is there for that
key alone.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ridgeline.serve.http.protocol.errors import refused

MOST_KEPT_BYTES = 16 * 2**20
"""The JSON of conversations and answers together."""
MOST_KEPT = 4096
"""The most responses, however short they are."""

_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """One response, and the conversation that it answers."""

    document: bytes
    """The response as it was told, JSON."""
    items: bytes
    """The input's items, those of responses before it first, JSON."""
    owner: bytes = b""
    """What tells the API key apart that it was made with; empty: there was none."""

    @property
    def num_bytes(self) -> int:
        """What it takes of the room."""
        return len(self.document) + len(self.items)

    @property
    def input(self) -> list[dict[str, Any]]:
        """The items that it answers."""
        found: list[dict[str, Any]] = _decode(self.items)
        return found

    @property
    def response(self) -> dict[str, Any]:
        """The response as it was told."""
        found: dict[str, Any] = _decode(self.document)
        return found

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """What the next input goes on from: the items, and the answer's own."""
        return [*self.input, *self.response["output"]]


def page_of(
    items: list[dict[str, Any]], *, limit: int, order: Literal["asc", "desc"], after: str | None
) -> dict[str, Any]:
    """A page of items, at most `limit` of them, behind the one whose id is `after`.

    >>> found = page_of([{"id": "a"}, {"id": "b"}], limit=1, order="desc", after=None)
    >>> found["data"], found["has_more"]
    ([{'id': 'b'}], True)

    Raises:
        ApiError: No item has that id.
    """
    items = items[::-1] if order == "desc" else items
    first = 0
    if after is not None:
        names = [one.get("id") for one in items]
        if after not in names:
            raise refused(f"after: no item {after[:100]!r} here", "after")
        first = names.index(after) + 1
    page = items[first : first + limit]
    ends = {"first_id": page[0].get("id") if page else None}
    ends["last_id"] = page[-1].get("id") if page else None
    more = first + limit < len(items)
    return {"object": "list", "data": page, **ends, "has_more": more}


class KeptResponses:
    """The responses that are kept.

    >>> kept = KeptResponses(most_bytes=40)
    >>> for name in ("a", "b"):
    ...     assert kept.keep(name, {"id": name, "output": []}, [], b"me")
    >>> kept.find("a", b"me") is None, kept.find("b", b"me").conversation
    (True, [])
    >>> kept.find("b", b"you") is None
    True
    >>> kept.keep("c", {"id": "c", "output": ["x" * 40]}, [], b"me"), kept.forget("b", b"me")
    (False, True)
    """

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES, most: int = MOST_KEPT) -> None:
        self._most_bytes, self._most = most_bytes, most
        self._kept: OrderedDict[str, KeptResponse] = OrderedDict()
        self._num_bytes = 0

    def keep(
        self, name: str, document: dict[str, Any], items: list[dict[str, Any]], owner: bytes
    ) -> bool:
        """Keep a response, as long as there is room; False where it is larger than all of it."""
        encode = msgspec.json.encode
        new = KeptResponse(document=encode(document), items=encode(items), owner=owner)
        if new.num_bytes > self._most_bytes:
            return False
        self.forget(name, owner)
        self._kept[name] = new
        self._num_bytes += new.num_bytes
        while self._num_bytes > self._most_bytes or len(self._kept) > self._most:
            _, oldest = self._kept.popitem(last=False)
            self._num_bytes -= oldest.num_bytes
        return True

    def find(self, name: str, owner: bytes) -> KeptResponse | None:
        """An owner's response by its id, which is then the last to go."""
        found = self._kept.get(name)
        if found is None or found.owner != owner:
            return None
        self._kept.move_to_end(name)
        return found

    def forget(self, name: str, owner: bytes) -> bool:
        """Whether the owner had a response of this id; there is none any more."""
        found = self.find(name, owner)
        if found is None:
            return False
        del self._kept[name]
        self._num_bytes -= found.num_bytes
        return True
