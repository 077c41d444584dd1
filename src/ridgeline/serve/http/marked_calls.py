"""Calls of tools between a family's own marks, found as the text streams (`tool_families.py`).

Between marks stand JSON objects with a name inside or before them, whose arguments are passed on as
they are written, or something else (tags, Python, objects with bare keys), which is converted when
it is complete, values between tags to the type that the tool's schema gives them.
"""

from __future__ import annotations

import ast
import io
import itertools
import json
import keyword
import re
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.serve.http.clean_text import first_mark, held_back
from ridgeline.serve.http.json_object import ObjectScanner, whole_characters
from ridgeline.serve.http.protocol.tools import CustomTool, Tool
from ridgeline.serve.http.tool_calls import (
    ARGUMENTS,
    BetweenCalls,
    Call,
    CallPiece,
    json_text,
    written_arguments,
)
from ridgeline.serve.http.tool_families import ToolFamily

_SPACE = " \t\r\n"
LONGEST_HEAD = 512
"""Characters between a mark and the arguments: a name and some signs."""


@dataclass(slots=True)
class MarkedCallReader:
    """A reader of one completion; feed it text, and pieces come out in order, nothing twice."""

    family: ToolFamily
    tools: dict[str, Tool | CustomTool]
    special: frozenset[str] = frozenset()
    """Special tokens that stand in the text and are to be left out."""
    calls: list[Call] = field(default_factory=list)
    _text: str = ""
    """Text that is not decided yet."""
    _within: bool = False
    """An opening mark has come, and what it opened goes on."""
    _listed: bool = False
    """Calls come as a list."""
    _scanner: ObjectScanner | None = None
    _named: bool = False
    """The object under way is the arguments, and the name stood before it."""
    _announced: bool = False
    _spoken: bool = False
    """Text has come, behind which no list of Python calls begins."""
    _ends: bool = False
    """No more text comes."""
    _between: BetweenCalls = field(default_factory=BetweenCalls)
    _before: int = 0
    """The number of calls before the mark."""

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
        self._ends = True
        while self._advance(pieces):
            pass
        whole = self._within and self._converted(self._text, pieces)
        if not whole and self._scanner is None:
            self._say((self._unread_mark if self._within else "") + self._text, pieces)
        self._text = ""
        return pieces

    def _advance(self, pieces: list[CallPiece]) -> bool:
        """Take one decision; False where more text is needed."""
        if self._scanner is not None:
            return self._in_object(self._scanner, pieces)
        if not self._within:
            return self._up_to_mark(pieces)
        if self.family.shape == "objects":
            return self._at_object(pieces)
        if not self.family.close:
            return False  # the whole completion is one list of calls
        body, close, behind = self._text.partition(self.family.close)
        if not close:
            return False
        if not self._converted(body, pieces):
            self._say(self.family.open + body + close, pieces)
        self._text, self._within = behind, False
        return True

    def _up_to_mark(self, pieces: list[CallPiece]) -> bool:
        opens = self.family.open
        if self.family.is_whole_text:
            rest = self._text.lstrip(_SPACE)
            rest = next(
                (rest[len(one) :] for one in self.family.drop if rest.startswith(one)), rest
            )
            if rest.startswith(opens) and not self._spoken:
                self._text, self._within = rest.removeprefix(opens), True
                return False
        drop = {*self.family.drop, *self.special} - {opens}
        marks = drop if self.family.is_whole_text else {opens, *drop}
        found = first_mark(self._text, marks, ends=self._ends)
        if found is not None:
            at, mark = found
            before, self._text = self._text[:at], self._text[at + len(mark) :]
            self._say(before.rstrip(_SPACE) if mark in self.family.marks else before, pieces)
            self._within, self._listed = mark == opens, False
            self._before = len(self.calls)
            return True
        kept = held_back(self._text, marks)
        self._say(self._text[: len(self._text) - kept], pieces)
        self._text = self._text[len(self._text) - kept :]
        return False

    def _at_object(self, pieces: list[CallPiece]) -> bool:
        """Look for the object behind a mark or within a list, or for the name before it."""
        rest = self._text.lstrip(_SPACE + (",;" if self._listed else ""))
        if rest.startswith("[") and not self._listed and not self.family.name_in(rest):
            if len(rest) < 2 or not rest[1:].lstrip(_SPACE).startswith(("{", "]")):
                return self._give_up(pieces) if rest[1:].strip(_SPACE) else False
            self._listed, self._text = True, rest[1:]
            return True
        close = self.family.close
        if self._listed and rest.startswith("]"):
            self._text, self._listed, self._within = rest[1:], False, bool(close)
            return True
        if close and rest.startswith(close):
            self._text, self._within = rest[len(close) :], False
            return True
        if close and close.startswith(rest):
            return False
        head, brace, _ = rest.partition("{")
        if not brace:
            return self._give_up(pieces) if len(rest) > LONGEST_HEAD else False
        name = self.family.name_in(head) if head else ""
        if name is None:
            return self._give_up(pieces)
        self._named, self._announced = bool(name), False
        if name:
            self._announce(name, pieces)
        self._text = rest[len(head) :]
        self._scanner = ObjectScanner()
        self._scanner.feed(self._text)
        return True

    def _in_object(self, scanner: ObjectScanner, pieces: list[CallPiece]) -> bool:
        if not self._announced:
            name = self._name_in(scanner)
            if name is None and scanner.end is None and not scanner.broken:
                return False
            if name is None:
                self._scanner = None
                return self._give_up(pieces)
            self._announce(name, pieces)
        call, end = self.calls[-1], scanner.end
        if self._named:
            written = scanner.text[:end]
        else:
            keys = ARGUMENTS if self.family.name_key else (call.name,)
            written = written_arguments(scanner, call.arguments, keys)
        call.done = end is not None
        if call.done and not written:
            written = "{}"
        if len(written) > len(call.arguments):
            more = written[len(call.arguments) :]
            pieces.append(CallPiece(index=len(self.calls) - 1, arguments=more))
            call.arguments = written
        if end is None:
            return False
        self._text, self._scanner = scanner.text[end:], None
        self._within = self._listed or bool(self.family.close)
        return True

    def _name_in(self, scanner: ObjectScanner) -> str | None:
        """The function's name in the object under way, when it has come."""
        key = self.family.name_key
        if not key:
            return next(iter(scanner.members), None) or None
        value = scanner.value(key)
        return None if value is None else json_text(value) or None

    def _announce(self, name: str, pieces: list[CallPiece]) -> None:
        pieces.append(CallPiece(index=len(self.calls), name=name))
        self.calls.append(Call(name))
        self._announced = True

    def _give_up(self, pieces: list[CallPiece]) -> bool:
        """What the mark opened is no call, but text."""
        self._say(self._unread_mark, pieces)
        self._within = self._listed = False
        return True

    @property
    def _unread_mark(self) -> str:
        """The mark that opened what goes on, unless a call stood behind it."""
        return self.family.open if len(self.calls) == self._before else ""

    def _converted(self, body: str, pieces: list[CallPiece]) -> bool:
        """Whether a body that is not JSON has calls; they are passed on whole."""
        found = calls_in(body, self.family, self.tools)
        for name, values in found:
            arguments = whole_characters(json.dumps(values, ensure_ascii=False))
            pieces.append(CallPiece(index=len(self.calls), name=name, arguments=arguments))
            self.calls.append(Call(name, arguments, done=True))
        return bool(found)

    def _say(self, text: str, pieces: list[CallPiece]) -> None:
        """Pass on text; space around calls is dropped."""
        self._spoken = self._spoken or bool(text)
        text = self._between.text(text, len(self.calls))
        if text:
            pieces.append(CallPiece(content=text))


LONGEST_PYTHON = 1 << 16
"""Characters of Python calls that are parsed."""
_BARE_KEY = re.compile(r"([{,]\s*)([\w.$-]+)\s*:")
_WORDS = {
    "true": True, "false": False, "null": None, "True": True, "False": False, "None": None,
}  # fmt: skip
_KEYWORD = "_keyword_"
"""What stands before a name of an argument that Python keeps for itself."""

FoundCalls = list[tuple[str, dict[str, Any]]]
"""The names of functions with their arguments, in order."""
GivenTools = Mapping[str, Tool | CustomTool]


def calls_in(body: str, family: ToolFamily, tools: GivenTools) -> FoundCalls:
    """The calls in what stands between a family's marks; none where it is anything else."""
    match family.shape:
        case "tags":
            return _tagged(body, family, tools)
        case "notation":
            return _noted(body, family)
        case "python":
            opened = "" if family.close else family.open
            return _python_calls(opened + body, family.drop)
        case _:
            return []


def _tagged(body: str, family: ToolFamily, tools: GivenTools) -> FoundCalls:
    name, rest = family.name_in(body), body
    if name is None:
        return []
    values = {
        one["key"].strip(): one["value"]
        if one.groupdict().get("text")
        else _typed(tools.get(name), one["key"].strip(), one["value"])
        for one in re.finditer(family.argument, rest, re.DOTALL)
    }
    return [(name, values)] if values or name in tools else []


def _typed(tool: Tool | CustomTool | None, key: str, text: str) -> Any:
    """A value between tags, as the tool's schema has it: a text, or else JSON."""
    properties = ((tool.function.parameters or {}) if tool else {}).get("properties")
    schema = properties.get(key) if isinstance(properties, dict) else None
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _WORDS.get(text.strip(), text)


def _noted(body: str, family: ToolFamily) -> FoundCalls:
    """A call such as `call:f{a:<|"|>x<|"|>,b:[1,2]}`."""
    name = family.name_in(body)
    if name is None:
        return []
    parts = body[body.find("{") :].split(family.quote) if "{" in body else ["{}"]
    written = [
        json.dumps(part) if place % 2 else _BARE_KEY.sub(r'\1"\2":', part)
        for place, part in enumerate(parts)
    ]
    try:
        values = json.loads("".join(written))
    except (ValueError, RecursionError):
        return []
    return [(name, values)] if isinstance(values, dict) else []


def _python_calls(text: str, drop: Iterable[str]) -> FoundCalls:
    """The calls of a list such as `[f(a=1), g(b="x")]`, or one to a line."""
    for mark in drop:
        text = text.replace(mark, "")
    if len(text) > LONGEST_PYTHON:
        return []
    try:
        found: list[ast.expr] = []
        for line in ast.parse(_without_keywords(text.strip())).body:
            if not isinstance(line, ast.Expr):
                return []
            found += line.value.elts if isinstance(line.value, ast.List) else [line.value]
        return [_python_call(node) for node in found]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _without_keywords(text: str) -> str:
    """Python calls whose arguments may have Python's own words as names (`from="Rome"`)."""
    if not any(f"{word}=" in text.replace(" ", "") for word in keyword.kwlist):
        return text
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, IndentationError):
        return text
    lines = text.splitlines(keepends=True)
    for token, behind in reversed(list(itertools.pairwise(tokens))):
        if keyword.iskeyword(token.string) and behind.string == "=":
            row, column = token.start
            line = lines[row - 1]
            lines[row - 1] = line[:column] + _KEYWORD + line[column:]
    return "".join(lines)


def _python_call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    """One call's name and arguments. Raises ValueError where it is none, or is to be computed."""
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with named arguments")
    values = {one.arg.removeprefix(_KEYWORD): _value(one.value) for one in node.keywords if one.arg}
    json.dumps(values)  # sets and bytes are no JSON
    return ast.unparse(node.func), values


def _value(node: ast.expr) -> Any:
    """A literal, in which JSON's words may stand for Python's. Raises ValueError elsewhere."""
    match node:
        case ast.Name() if node.id in _WORDS:
            return _WORDS[node.id]
        case ast.List() | ast.Tuple():
            return [_value(one) for one in node.elts]
        case ast.Dict():
            keys = [ast.literal_eval(key) for key in node.keys if key is not None]
            return dict(zip(keys, map(_value, node.values), strict=True))
    return ast.literal_eval(node)
