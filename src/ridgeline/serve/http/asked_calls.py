"""Calls as they were asked for: of the allowed tools alone, and custom tools' input as free text.

The model writes a custom tool's call as it writes all calls, with one text in its arguments
(`protocol.tools`). The text is taken out as it streams, its escapes undone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace

from ridgeline.serve.http.json_object import whole_characters
from ridgeline.serve.http.marked_calls import MarkedCallReader
from ridgeline.serve.http.tool_calls import Call, CallPiece, ToolCallReader

_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_HIGH = r"u[dD][89abAB][0-9a-fA-F]{2}"
_OPEN = re.compile(
    rf"\\(?:u[0-9a-fA-F]{{0,3}}|{_HIGH}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?\Z"
)
"""An escape that may yet go on."""
_PIECE = re.compile(
    rf'[^"\\]+|\\{_HIGH}\\u[dD][c-fC-F][0-9a-fA-F]{{2}}|\\u[0-9a-fA-F]{{4}}|\\.', re.DOTALL
)
"""Characters as they stand, or an escape, whether JSON has it or not."""


@dataclass(slots=True)
class FreeInput:
    r"""The input of one call, taken out of its arguments.

    >>> one = FreeInput()
    >>> [one.feed(piece) for piece in ('{"inp', 'ut": "a\\', 'nb"}')], one.finish()
    (['', 'a', '\nb'], '')

    Arguments that are no such object are the input as they stand.

    >>> FreeInput("print(1)").finish()
    'print(1)'
    """

    written: str = ""
    _place: int | None = None
    """Up to where the text has been passed on."""
    _over: bool = False
    """Whether the text's end has come."""

    def feed(self, more: str) -> str:
        """What more of the arguments says of the input."""
        self.written += more
        if self._over:
            return ""
        if self._place is None:
            found = _BEGIN.match(self.written)
            if found is None:
                return ""
            self._place = found.end()
        text = ""
        while not _OPEN.match(self.written, self._place):
            piece = _PIECE.match(self.written, self._place)
            if piece is None:
                break
            self._place = piece.end()
            text += _unescaped(piece[0])
        self._over = self.written.startswith('"', self._place)
        return text

    def finish(self) -> str:
        """What is left when the arguments are whole."""
        if self._place is not None:
            return ""
        try:
            found = json.loads(self.written)
        except (ValueError, RecursionError):
            return self.written
        if isinstance(found, dict) and len(found) == 1:
            (found,) = found.values()
        return whole_characters(found) if isinstance(found, str) else self.written


def _unescaped(text: str) -> str:
    r"""An escape's character, or the text where it is none.

    >>> _unescaped(r"ab"), _unescaped(r"\t"), _unescaped(r"\q")
    ('ab', '\t', '\\q')
    """
    if not text.startswith("\\"):
        return text
    try:
        return whole_characters(str(json.loads(f'"{text}"')))
    except ValueError:  # the model has made it up
        return text


@dataclass(slots=True)
class AskedCalls:
    """A reader behind another one, whose calls it passes on as they were asked for."""

    reader: ToolCallReader | MarkedCallReader
    only: frozenset[str] | None
    """The tools that may be called; calls of others are dropped. None: whatever is called."""
    custom: frozenset[str]
    """The tools whose input is free text."""
    calls: list[Call] = field(default_factory=list)
    _numbers: list[int | None] = field(default_factory=list)
    """For each call of the other reader its number here; None: it is dropped."""
    _input: FreeInput | None = None
    """The input under way, of the last call."""

    def feed(self, text: str) -> list[CallPiece]:
        """Take more text of the completion."""
        return self._passed(self.reader.feed(text))

    def finish(self) -> list[CallPiece]:
        """End the text of the completion."""
        return [*self._passed(self.reader.finish()), *self._end_input()]

    def _passed(self, found: list[CallPiece]) -> list[CallPiece]:
        pieces: list[CallPiece] = []
        for piece in found:
            if piece.index < 0 or piece.name is not None:
                pieces += self._end_input()
            if piece.index < 0:
                pieces.append(piece)
                continue
            if piece.name is not None:
                self._begin(piece.name)
            pieces += self._of_call(piece)
        for number, call in zip(self._numbers, self.reader.calls, strict=True):
            if number is not None:
                self.calls[number].done = call.done
        return pieces

    def _begin(self, name: str) -> None:
        if self.only is not None and name not in self.only:
            self._numbers.append(None)
            return
        self._numbers.append(len(self.calls))
        self.calls.append(Call(name))
        self._input = FreeInput() if name in self.custom else None

    def _of_call(self, piece: CallPiece) -> list[CallPiece]:
        number = self._numbers[piece.index]
        if number is None:
            return []
        arguments = piece.arguments
        if self._input is not None:
            arguments = self._input.feed(arguments)
        self.calls[number].arguments += arguments
        if piece.name is None and not arguments:
            return []
        return [replace(piece, index=number, arguments=arguments)]

    def _end_input(self) -> list[CallPiece]:
        ended, self._input = self._input, None
        text = "" if ended is None else ended.finish()
        if not text:
            return []
        self.calls[-1].arguments += text
        return [CallPiece(index=len(self.calls) - 1, arguments=text)]
