"""Whole calls of tools that are not JSON: in tags, in Python, as objects with bare keys.

Values between tags are converted to the type that the tool's schema gives them.
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
from typing import Any

from ridgeline.serve.http.protocol.tools import CustomTool, Tool
from ridgeline.serve.http.tool_families import ToolFamily

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
