"""Text of an answer without the marks that a family puts around it and without special tokens.

Text keeps special tokens where a family's marks are made of them; what no reader of thoughts or
calls has taken is left out here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ridgeline.serve.http.tool_calls import CallPiece

_SPACE = " \t\r\n"


@dataclass(slots=True)
class CleanText:
    r"""Takes an answer as it streams; space beside marks goes with them.

    >>> one = CleanText(frozenset({"<answer>", "</answer>"}))
    >>> [one.feed(piece) for piece in ("<ans", "wer>\nYe", "s. \n</an", "swer>")], one.finish()
    (['', 'Ye', 's.', ''], '')
    """

    marks: frozenset[str]
    _text: str = ""
    """What is not decided yet."""
    _edge: bool = False
    """Nothing but space has come since a mark."""

    def feed(self, more: str) -> str:
        """The text that is certain."""
        self._text += more
        clean = self._before_marks(ends=False)
        kept = held_back(self._text, self.marks)
        text, self._text = (
            self._text[: len(self._text) - kept],
            self._text[len(self._text) - kept :],
        )
        return clean + self._passed(text)

    def finish(self) -> str:
        """What was held back at the end."""
        clean = self._before_marks(ends=True)
        text, self._text = self._text, ""
        return clean + self._passed(text)

    def pieces(self, found: list[CallPiece], *, ends: bool) -> list[CallPiece]:
        """Pieces of a completion, the text in them clean."""
        clean = []
        for piece in found:
            content = self.feed(piece.content) if piece.content else ""
            if content or not piece.content:
                clean.append(replace(piece, content=content))
        rest = self.finish() if ends else ""
        return [*clean, CallPiece(content=rest)] if rest else clean

    def _before_marks(self, *, ends: bool) -> str:
        """The text before all marks that have come."""
        clean = ""
        while (found := first_mark(self._text, self.marks, ends=ends)) is not None:
            at, mark = found
            clean += self._passed(self._text[:at].rstrip(_SPACE))
            self._text, self._edge = self._text[at + len(mark) :], True
        return clean

    def _passed(self, text: str) -> str:
        if self._edge:
            text = text.lstrip(_SPACE)
            self._edge = not text
        return text


def first_mark(text: str, marks: Iterable[str], *, ends: bool) -> tuple[int, str] | None:
    """Where the first mark stands, and which it is, the longest of several.

    None where there is none, or, unless the text ends here, where a longer one may come of it.
    """
    marks = tuple(marks)
    found = [(at, -len(one), one) for one in marks if (at := text.find(one)) >= 0]
    if not found:
        return None
    at, _, mark = min(found)
    rest = text[at:]
    if not ends and any(one != rest and one.startswith(rest) for one in marks):
        return None
    return at, mark


def held_back(text: str, marks: Iterable[str]) -> int:
    """Characters at the end that may yet be space before a mark, or a mark's beginning."""
    longest = 0
    for mark in marks:
        sizes = range(min(len(mark) - 1, len(text)), longest, -1)
        longest = next((size for size in sizes if text.endswith(mark[:size])), longest)
    body = text[: len(text) - longest]
    return longest + len(body) - len(body.rstrip(_SPACE))
