"""One JSON object, read as its text streams in: where it ends, and where its values lie."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

_SPACE = " \t\r\n"


def whole_characters(text: str) -> str:
    r"""The text with U+FFFD for halves of characters, which JSON can write and UTF-8 cannot.

    >>> whole_characters("a\ud800b"), whole_characters("\U0001f600")
    ('a\ufffdb', '\U0001f600')
    """
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass(slots=True)
class _ValueSpan:
    """The place of a value in the text."""

    start: int
    end: int | None = None
    """The end of the value; None: the value goes on."""


@dataclass(slots=True)
class ObjectScanner:
    """Looks at every character once. Only the object's own level is checked for its grammar."""

    text: str = ""
    members: dict[str, _ValueSpan] = field(default_factory=dict)
    end: int | None = None
    """Behind the closing brace."""
    broken: bool = False
    _depth: int = 0
    _quoted: bool = False
    _escaped: bool = False
    _began: int = 0
    """The beginning of the string under way."""
    _expects: str = "{"
    """What comes next at the object's own level: a brace, a key, a colon, a value, a comma."""
    _key: str = ""

    def feed(self, text: str) -> None:
        """Take more text; what lies behind the object is left alone."""
        position = len(self.text)
        self.text += text
        while position < len(self.text) and self.end is None and not self.broken:
            self._take(self.text[position], position)
            position += 1

    def value(self, key: str) -> str | None:
        """Text of a value that is complete."""
        span = self.members.get(key)
        return None if span is None or span.end is None else self.text[span.start : span.end]

    def _take(self, sign: str, at: int) -> None:
        if self._quoted:
            self._in_string(sign, at)
        elif self._depth > 1:
            self._deeper(sign, at)
        elif sign not in _SPACE:
            self._own_level(sign, at)

    def _in_string(self, sign: str, at: int) -> None:
        if self._escaped:
            self._escaped = False
        elif sign == "\\":
            self._escaped = True
        elif sign == '"':
            self._quoted = False
            if self._depth == 1 and self._expects == "key":
                self._key = self._decoded(self.text[self._began : at + 1])
                self._expects = ":"
            elif self._depth == 1:
                self._close_value(at + 1)

    def _deeper(self, sign: str, at: int) -> None:
        if sign == '"':
            self._quoted = True
        elif sign in "{[":
            self._depth += 1
        elif sign in "}]":
            self._depth -= 1
            if self._depth == 1:
                self._close_value(at + 1)

    def _own_level(self, sign: str, at: int) -> None:
        match self._expects, sign:
            case "{", "{":
                self._depth, self._expects = 1, "key"
            case "key", '"':
                self._quoted, self._began = True, at
            case ":", ":":
                self._expects = "value"
            case "value", _ if sign not in ",:}]":
                self._open_value(sign, at)
            case "scalar", "," | "}":
                self._close_value(at)
                self._own_level(sign, at)
            case "scalar", _:
                pass
            case ",", ",":
                self._expects = "key"
            case (",", "}") | ("key", "}"):
                self.end = at + 1
            case _:
                self.broken = True

    def _open_value(self, sign: str, at: int) -> None:
        self.members[self._key] = _ValueSpan(at)
        self._expects = "scalar"
        if sign == '"':
            self._quoted = True
        elif sign in "{[":
            self._depth = 2

    def _close_value(self, at: int) -> None:
        span = self.members[self._key]
        span.end = span.start + len(self.text[span.start : at].rstrip(_SPACE))
        self._expects = ","

    def _decoded(self, text: str) -> str:
        try:
            return whole_characters(str(json.loads(text)))
        except ValueError:
            self.broken = True
            return text
