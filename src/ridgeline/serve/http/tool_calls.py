"""How tool calls in JSON are found as the text streams, whatever the family of the model.

Three ways of writing them, recognised by what the text looks like:

- Hermes, Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, anywhere, several;
- Llama 3: `{"name": …, "parameters": {…}}`, the whole completion, after `<|python_tag|>` or not;
- plain JSON: the same with either key, one after the other or in a list.

Without tags, JSON counts as a call only where its name is that of a given tool: other JSON is the
completion's text. Arguments are passed on as the model wrote them, piece by piece. Whole
completions are read by the same code, so streamed and whole completions agree.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from ridgeline.serve.http.json_object import ObjectScanner, whole_characters

OPEN, CLOSE, PYTHON_TAG = "<tool_call>", "</tool_call>", "<|python_tag|>"
ARGUMENTS = ("arguments", "parameters")
"""Keys of the arguments in a call's object."""
_SPACE = " \t\r\n"
_BETWEEN = _SPACE + ",;[]"
"""Characters between calls without tags, and around them."""


@dataclass(slots=True)
class Call:
    """One call so far; `arguments` is JSON, complete when `done`."""

    name: str
    arguments: str = ""
    done: bool = False


@dataclass(frozen=True, slots=True)
class CallPiece:
    """What some text brought: text for the reader, or the beginning or arguments of a call."""

    content: str = ""
    reasoning: str = ""
    """A thought, which is read before calls are looked for."""
    index: int = -1
    """The number of the call; below 0: text."""
    name: str | None = None
    """The function's name, in a call's first piece."""
    arguments: str = ""


@dataclass(slots=True)
class BetweenCalls:
    """Leaves out the signs that stand behind a call, unless text follows them."""

    signs: str = _SPACE
    _calls: int = 0
    """The number of calls when something was last said."""
    _held: str = ""
    """Signs behind the last call, as long as nothing else has come."""
    _edge: bool = False

    def text(self, more: str, calls: int) -> str:
        """The text that is certain, `calls` having come before it."""
        if calls > self._calls:
            self._calls, self._held, self._edge = calls, "", True
        if not self._edge:
            return more
        more, self._held = self._held + more, ""
        if not more.strip(self.signs):
            self._held, more = more, ""
        self._edge = not more
        return more


@dataclass(slots=True)
class ToolCallReader:
    """A reader of one completion; feed it text, and pieces come out in order, nothing twice."""

    names: frozenset[str]
    """The names of the given tools."""
    calls: list[Call] = field(default_factory=list)
    _text: str = ""
    """Text that is not decided yet; with a scanner, the object under way."""
    _lead: str = ""
    """What stood before the object; text after all, if the object is no call."""
    _scanner: ObjectScanner | None = None
    _tagged: bool = False
    _announced: bool = False
    """The object under way is a call: its name has been passed on."""
    _closing: bool = False
    """A tagged object is complete, its closing tag may come."""
    _between: BetweenCalls = field(default_factory=lambda: BetweenCalls(_BETWEEN))
    _untagged: bool = True
    """Nothing but calls has come, so an object may be another one."""

    def feed(self, text: str) -> list[CallPiece]:
        """Take more text of the completion."""
        self._text += text
        if self._scanner is not None:
            self._scanner.feed(text)
        pieces: list[CallPiece] = []
        while self._advance(pieces):
            pass
        return pieces

    def finish(self) -> list[CallPiece]:
        """End the text, of which what is undecided is text unless it belongs to a call."""
        pieces: list[CallPiece] = []
        announced = self._scanner is not None and self._announced
        if not announced and not (self._closing and CLOSE.startswith(self._text.strip(_SPACE))):
            self._say(self._lead + self._text, pieces)
        self._text = self._lead = ""
        return pieces

    def _advance(self, pieces: list[CallPiece]) -> bool:
        """Take one decision; False where more text is needed."""
        if self._scanner is not None:
            return self._in_object(self._scanner, pieces)
        if self._closing:
            return self._at_closing_tag()
        return self._at_untagged() if self._untagged else self._up_to_tag(pieces)

    def _at_untagged(self) -> bool:
        rest = self._text.lstrip(_BETWEEN).removeprefix(PYTHON_TAG).lstrip(_SPACE)
        if rest.startswith("{"):
            self._begin_object(rest, tagged=False)
            return True
        if not rest or PYTHON_TAG.startswith(rest):
            return False
        self._untagged = False
        return True

    def _up_to_tag(self, pieces: list[CallPiece]) -> bool:
        before, tag, behind = self._text.partition(OPEN)
        if not tag:
            kept = _held_back(self._text)
            self._say(self._text[: len(self._text) - kept], pieces)
            self._text = self._text[len(self._text) - kept :]
            return False
        rest = behind.lstrip(_SPACE)
        if rest and not rest.startswith("{"):
            self._say(before + tag, pieces)
            self._text = behind
            return True
        said = before.rstrip(_SPACE)
        self._say(said, pieces)
        self._text = before[len(said) :] + tag + behind
        if rest:
            self._begin_object(rest, tagged=True)
        return bool(rest)

    def _begin_object(self, rest: str, *, tagged: bool) -> None:
        self._lead = self._text[: len(self._text) - len(rest)]
        self._text, self._tagged = rest, tagged
        self._announced = False
        self._scanner = ObjectScanner()
        self._scanner.feed(rest)

    def _in_object(self, scanner: ObjectScanner, pieces: list[CallPiece]) -> bool:
        if not self._announced:
            name = scanner.value("name")
            if name is None and scanner.end is None and not scanner.broken:
                return False
            if not self._announce(name, pieces):
                return self._was_no_call(pieces)
        self._pass_arguments(scanner, pieces)
        if scanner.end is None:
            return False
        self._text, self._lead, self._scanner = self._text[scanner.end :], "", None
        self._closing, self._untagged = self._tagged, not self._tagged
        return True

    def _announce(self, name: str | None, pieces: list[CallPiece]) -> bool:
        """Whether it is a call; its name is passed on."""
        known = None if name is None else json_text(name)
        if not known or not (self._tagged or known in self.names):
            return False
        pieces.append(CallPiece(index=len(self.calls), name=known))
        self.calls.append(Call(known))
        self._announced = True
        return True

    def _was_no_call(self, pieces: list[CallPiece]) -> bool:
        if self._tagged:  # there may be a call behind it
            self._say(self._lead, pieces)
        else:
            self._text, self._untagged = self._lead + self._text, False
        self._lead, self._scanner = "", None
        return True

    def _pass_arguments(self, scanner: ObjectScanner, pieces: list[CallPiece]) -> None:
        call = self.calls[-1]
        written = written_arguments(scanner, call.arguments)
        call.done = scanner.end is not None
        if call.done and not written:
            written = "{}"
        if len(written) > len(call.arguments):
            more = written[len(call.arguments) :]
            pieces.append(CallPiece(index=len(self.calls) - 1, arguments=more))
            call.arguments = written

    def _at_closing_tag(self) -> bool:
        rest = self._text.lstrip(_SPACE)
        if CLOSE.startswith(rest) and rest != CLOSE:
            return False
        self._text, self._closing = rest.removeprefix(CLOSE), False
        return True

    def _say(self, text: str, pieces: list[CallPiece]) -> None:
        """Pass on text; only space and separators around calls are dropped."""
        text = self._between.text(text, len(self.calls))
        if text:
            pieces.append(CallPiece(content=text))


@dataclass(slots=True)
class NamedCallReader:
    """Reads a completion that is nothing but one function's arguments (a grammar sees to it)."""

    name: str
    calls: list[Call] = field(default_factory=list)

    def feed(self, text: str) -> list[CallPiece]:
        """Take more text of the completion."""
        if not text:
            return []
        first = not self.calls
        if first:
            self.calls.append(Call(self.name))
        self.calls[0].arguments += text
        return [CallPiece(index=0, name=self.name if first else None, arguments=text)]

    def finish(self) -> list[CallPiece]:
        """End the text of the call."""
        for call in self.calls:
            call.done = True
        return []


def written_arguments(
    scanner: ObjectScanner, before: str, keys: tuple[str, ...] = ARGUMENTS
) -> str:
    """The arguments in a call's object, as far as they are written; `before`: nothing new is."""
    key = next((key for key in keys if key in scanner.members), None)
    if key is None:
        return before
    span = scanner.members[key]
    if scanner.text[span.start] == "{":
        return scanner.text[span.start : span.end]
    value = scanner.value(key)
    if value is None:
        return before
    return json_text(value) or ("{}" if value == "null" else value)


def json_text(value: str) -> str | None:
    """A JSON string's content; None where it is no string."""
    if not value.startswith('"'):
        return None  # and whatever else it is, however deep, is not looked into
    try:
        return whole_characters(str(json.loads(value)))
    except ValueError:
        return None


def _held_back(text: str) -> int:
    """Characters at the end that may yet be the space before a tag, or the tag's beginning."""
    for size in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if text.endswith(OPEN[:size]):
            break
    else:
        size = 0
    body = text[: len(text) - size]
    return size + len(body) - len(body.rstrip(_SPACE))
