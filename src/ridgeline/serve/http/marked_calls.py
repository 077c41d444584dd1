"""Calls of tools between a family's own marks, found as the text streams (`tool_families.py`).

Between marks stand JSON objects with a name inside or before them, values between tags, or Python
calls. JSON arguments are passed on as they are written; other values are converted when the call is
complete, each to the type that the tool's schema gives it.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ridgeline.serve.http.json_object import ObjectScanner
from ridgeline.serve.http.protocol.tools import CustomTool, Tool
from ridgeline.serve.http.tool_calls import Call, CallPiece, json_text, written_arguments
from ridgeline.serve.http.tool_families import ToolFamily

_SPACE = " \t\r\n"
LONGEST_HEAD = 512
"""Characters between a mark and the arguments: a name and some signs."""
LONGEST_PYTHON = 1 << 16
"""Characters of Python calls that are parsed."""
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(?:</function>|$)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


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
        whole = self._within and self._converted(self._text, pieces)
        if not whole and self._scanner is None:
            self._say((self.family.open if self._within else "") + self._text, pieces)
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
        if self.family.shape == "python":
            rest = self._text.lstrip(_SPACE)
            rest = next(
                (rest[len(one) :] for one in self.family.drop if rest.startswith(one)), rest
            )
            if rest.startswith(opens) and not self._spoken:
                self._text, self._within = rest.removeprefix(opens), True
                return False
        drop = {*self.family.drop, *self.special} - {opens}
        marks = sorted(drop if self.family.shape == "python" else {opens, *drop}, key=len)
        found = [(at, -len(one), one) for one in marks if (at := self._text.find(one)) >= 0]
        if found:
            at, _, mark = min(found)
            before, self._text = self._text[:at], self._text[at + len(mark) :]
            self._say(before.rstrip(_SPACE) if mark in self.family.marks else before, pieces)
            self._within, self._listed = mark == opens, False
            return True
        kept = _held_back(self._text, marks)
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
        if self._listed and rest.startswith("]"):
            self._text, self._within = rest[1:], False
            return True
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
            value = scanner.value("name")
            if value is None and scanner.end is None and not scanner.broken:
                return False
            name = None if value is None else json_text(value)
            if name is None:
                self._scanner = None
                return self._give_up(pieces)
            self._announce(name, pieces)
        call, end = self.calls[-1], scanner.end
        own = scanner.text[:end] if self._named else None
        written = written_arguments(scanner, call.arguments) if own is None else own
        call.done = end is not None
        if call.done and not written:
            written = "{}"
        if len(written) > len(call.arguments):
            more = written[len(call.arguments) :]
            pieces.append(CallPiece(index=len(self.calls) - 1, arguments=more))
            call.arguments = written
        if end is None:
            return False
        self._text, self._scanner, self._within = scanner.text[end:], None, self._listed
        return True

    def _announce(self, name: str, pieces: list[CallPiece]) -> None:
        pieces.append(CallPiece(index=len(self.calls), name=name))
        self.calls.append(Call(name))
        self._announced = True

    def _give_up(self, pieces: list[CallPiece]) -> bool:
        """What the mark opened is no call, but text."""
        self._say(self.family.open, pieces)
        self._within = self._listed = False
        return True

    def _converted(self, body: str, pieces: list[CallPiece]) -> bool:
        """Whether a body that is not JSON has calls; they are passed on whole."""
        match self.family.shape:
            case "parameters":
                found = [
                    (name.strip(), dict(_PARAMETER.findall(inside)))
                    for name, inside in _FUNCTION.findall(body)
                ]
            case "pairs":
                name = body.partition("<arg_key>")[0].strip()
                pairs = {key.strip(): value for key, value in _PAIR.findall(body)}
                found = [(name, pairs)] if pairs or name in self.tools else []
            case "python":
                return self._called(_python_calls("[" + body, self.family.drop), pieces)
            case _:
                return False
        typed = [
            (name, {key: self._typed(name, key, value) for key, value in values.items()})
            for name, values in found
        ]
        return self._called(typed, pieces)

    def _called(self, found: Iterable[tuple[str, dict[str, Any]]], pieces: list[CallPiece]) -> bool:
        """Pass on complete calls; whether there were any."""
        before = len(self.calls)
        for name, values in found:
            arguments = json.dumps(values, ensure_ascii=False)
            pieces.append(CallPiece(index=len(self.calls), name=name, arguments=arguments))
            self.calls.append(Call(name, arguments, done=True))
        return len(self.calls) > before

    def _typed(self, name: str, key: str, text: str) -> Any:
        """A value between tags, as the tool's schema has it: a text, or else JSON."""
        tool = self.tools.get(name)
        properties = ((tool.function.parameters or {}) if tool else {}).get("properties")
        schema = properties.get(key) if isinstance(properties, dict) else None
        kind = schema.get("type") if isinstance(schema, dict) else None
        if kind == "string":
            return text
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return {"True": True, "False": False, "None": None}.get(text.strip(), text)

    def _say(self, text: str, pieces: list[CallPiece]) -> None:
        """Pass on text; space around calls is dropped."""
        self._spoken = self._spoken or bool(text)
        if text and not (self.calls and not text.strip(_SPACE)):
            pieces.append(CallPiece(content=text))


def _held_back(text: str, marks: Iterable[str]) -> int:
    """Characters at the end that may yet be space before a mark, or a mark's beginning."""
    longest = 0
    for mark in marks:
        sizes = range(min(len(mark) - 1, len(text)), longest, -1)
        longest = next((size for size in sizes if text.endswith(mark[:size])), longest)
    body = text[: len(text) - longest]
    return longest + len(body) - len(body.rstrip(_SPACE))


def _python_calls(text: str, drop: Iterable[str]) -> list[tuple[str, dict[str, Any]]]:
    """The calls of a list such as `[f(a=1), g(b="x")]`; none where it is anything else."""
    for mark in drop:
        text = text.replace(mark, "")
    if len(text) > LONGEST_PYTHON:
        return []
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else []
        return [_python_call(node) for node in nodes]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _python_call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    """One call's name and arguments. Raises ValueError where it is none, or is to be computed."""
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with named arguments")
    values = {one.arg: ast.literal_eval(one.value) for one in node.keywords if one.arg}
    json.dumps(values)  # sets and bytes are no JSON
    return ast.unparse(node.func), values
