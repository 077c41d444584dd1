"""What a request asks of tool calls, and how they are found as the text streams.

`tools` and `tool_choice` become a grammar that forces a call, or a reader that finds them.

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
from typing import Any

from ridgeline.serve.http.json_object import ObjectScanner
from ridgeline.serve.http.protocol.chat import ChatRequest, NamedToolChoice, Tool
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.fields import schema_grammar
from ridgeline.serve.messages import Grammar

OPEN, CLOSE, PYTHON_TAG = "<tool_call>", "</tool_call>", "<|python_tag|>"
_ARGUMENTS = ("arguments", "parameters")
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
        self._say(before.rstrip(_SPACE), pieces)
        self._text = tag + behind
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
        if known is None or not (self._tagged or known in self.names):
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
        key = next((key for key in _ARGUMENTS if key in scanner.members), None)
        written = call.arguments
        if key is not None:
            span = scanner.members[key]
            if scanner.text[span.start] == "{":
                written = scanner.text[span.start : span.end]
            elif (value := scanner.value(key)) is not None:
                written = json_text(value) or ("{}" if value == "null" else value)
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
        if text and not (self.calls and not text.strip(_BETWEEN)):
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


def json_text(value: str) -> str | None:
    """A JSON string's content; None where it is no string."""
    if not value.startswith('"'):
        return None  # and whatever else it is, however deep, is not looked into
    try:
        return str(json.loads(value))
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


Reader = ToolCallReader | NamedCallReader


def tools_of(request: ChatRequest) -> list[Tool]:
    """The tools that the model is told of."""
    return [] if request.tool_choice == "none" else request.tools or []


def check_tools(request: ChatRequest) -> None:
    """Check that tools and choice fit together. Raises ApiError."""
    names = [tool.function.name for tool in request.tools or []]
    if len(set(names)) < len(names):
        raise refused("tools: two functions have the same name", "tools")
    choice = request.tool_choice
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        raise refused(f"tool_choice: no tool is named {choice.function.name}", "tool_choice")
    strict = any(tool.function.strict for tool in request.tools or [])
    if strict and choice in (None, "auto"):
        raise refused(
            "tools: strict is enforced with tool_choice required or a named function, not auto",
            "tools",
        )


def forced(request: ChatRequest) -> Grammar | None:
    """The grammar that makes the completion a call; None where the model is free."""
    choice = request.tool_choice
    if isinstance(choice, NamedToolChoice):
        tool = next(one for one in request.tools or [] if one.function.name == choice.function.name)
        return schema_grammar(_parameters(tool), "tools")
    if choice != "required":
        return None
    definitions: dict[str, Any] = {}
    calls = []
    for tool in request.tools or []:
        parameters = dict(_parameters(tool))
        own = parameters.pop("$defs", {})
        if not isinstance(own, dict):
            raise refused("tools: $defs is no object", "tools")
        for name, definition in own.items():
            if definitions.setdefault(name, definition) != definition:
                raise refused(f"tools: two functions define $defs/{name} differently", "tools")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.function.name}, "parameters": parameters},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if request.parallel_tool_calls is False:
        schema["maxItems"] = 1
    if definitions:
        schema["$defs"] = definitions
    return schema_grammar(schema, "tools")


def reader_of(request: ChatRequest) -> Reader | None:
    """A reader that finds the calls in one completion; None where none may come."""
    if isinstance(request.tool_choice, NamedToolChoice):
        return NamedCallReader(request.tool_choice.function.name)
    tools = tools_of(request)
    return ToolCallReader(frozenset(tool.function.name for tool in tools)) if tools else None


def _parameters(tool: Tool) -> dict[str, Any]:
    return tool.function.parameters or {"type": "object"}
