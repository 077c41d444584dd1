"""What a request asks of tools: a grammar that forces calls or keeps them strict, and a reader.

The model writes a custom tool's call as it writes all calls, with one text in its arguments
(`protocol.tools`). The text is taken out as it streams, its escapes undone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ridgeline.serve.http.json_object import whole_characters
from ridgeline.serve.http.marked_calls import MarkedCallReader
from ridgeline.serve.http.protocol.chat import ChatRequest
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.exact import told
from ridgeline.serve.http.protocol.fields import json_text, schema_grammar
from ridgeline.serve.http.protocol.tools import CustomTool, CustomToolChoice, NamedToolChoice, Tool
from ridgeline.serve.http.tool_calls import Call, CallPiece, NamedCallReader, ToolCallReader
from ridgeline.serve.http.tool_families import ToolFamily
from ridgeline.serve.messages import Grammar
from ridgeline.serve.sampling.schema_forms import placed
from ridgeline.serve.sampling.schema_loosening import loosened, without_annotations

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


Reader = ToolCallReader | MarkedCallReader | NamedCallReader | AskedCalls
AnyTool = Tool | CustomTool


def check_tools(request: ChatRequest, family: ToolFamily) -> None:
    """Check that tools and choice fit together. Raises ApiError."""
    kinds = {(tool.type, tool.function.name) for tool in request.tools or []}
    if len({name for _, name in kinds}) < len(request.tools or []):
        raise refused("tools: two functions have the same name", "tools")
    choice = request.tool_choice
    if isinstance(choice, NamedToolChoice | CustomToolChoice):
        name = choice.function.name
        if (choice.type, name) not in kinds:
            raise refused(f"tool_choice: no {choice.type} tool is named {name}", "tool_choice")
    if is_strict(request) and choice in (None, "auto") and not family.strict_open:
        raise refused(
            "tools: strict is enforced with tool_choice required or a named function; with auto,"
            " not in the way in which this model writes calls",
            "tools",
        )


def forced(request: ChatRequest, without_effect: list[str]) -> Grammar | None:
    """The grammar that makes the completion a call; None where the model is free.

    What it lets go of schemas that are not strict goes into `without_effect`.
    """
    choice = request.tool_choice
    if isinstance(choice, NamedToolChoice | CustomToolChoice):
        tool = next(one for one in request.tools or [] if one.function.name == choice.function.name)
        if isinstance(tool, CustomTool):
            return _free_input(tool)
        return schema_grammar(_enforced(tool, without_effect), "tools")
    if choice != "required":
        return None
    definitions: dict[str, Any] = {}
    calls = []
    for number, tool in enumerate(request.tools or []):
        parameters = _enforced(tool, without_effect)
        at = f"#/$defs/f{number}"
        if (there := placed(parameters, at)) != parameters:
            definitions[f"f{number}"], parameters = there, {"$ref": at}
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


def is_strict(request: ChatRequest) -> bool:
    """Whether a tool asks that its arguments match its schema exactly."""
    return any(tool.function.strict for tool in request.tools or [])


def custom_names(request: ChatRequest) -> frozenset[str]:
    """The names of the custom tools."""
    tools = request.tools or []
    return frozenset(tool.function.name for tool in tools if isinstance(tool, CustomTool))


def unheld_formats(request: ChatRequest) -> bool:
    """Whether the model is only told what the input of a custom tool matches."""
    if isinstance(request.tool_choice, CustomToolChoice):
        return False
    return any(isinstance(tool, CustomTool) and tool.grammar for tool in request.shown_tools)


def _free_input(tool: CustomTool) -> Grammar | None:
    """The grammar of a completion that is nothing but one custom tool's input."""
    wanted = tool.grammar
    if wanted is None:
        return None
    if wanted.syntax == "lark":
        raise refused(
            "tools: a lark grammar is told to the model but not enforced; leave the choice to the"
            " model (tool_choice auto), or give a regex",
            "tools",
        )
    return Grammar(kind="regex", text=wanted.definition)


def strict_calls(request: ChatRequest, family: ToolFamily) -> Grammar | None:
    """The grammar of free text in which calls, where one begins, match their tools' schemas."""
    if not is_strict(request) or request.tool_choice not in (None, "auto"):
        return None
    tags = []
    for tool in request.tools or []:
        name = tool.function.name
        parameters, _ = without_annotations(_parameters(tool))
        content = {"type": "json_schema", "json_schema": parameters}
        begin = family.strict_open.replace("NAME", name)
        tags.append({"begin": begin, "content": content, "end": family.strict_close})
    once = request.parallel_tool_calls is False
    form = {
        "type": "triggered_tags",
        "triggers": [family.open],
        "tags": tags,
        "at_least_one": False,
        "stop_after_first": once,
    }
    text = json_text({"type": "structural_tag", "format": form}, "tools")
    return Grammar(kind="structural_tag", text=text)


def reader_of(
    request: ChatRequest,
    family: ToolFamily,
    special: frozenset[str] = frozenset(),
    drop: tuple[str, ...] = (),
) -> Reader | None:
    """A reader that finds the calls in one completion; None where none may come.

    Args:
        request: The request.
        family: How the model writes calls.
        special: Special tokens that stand in the text.
        drop: Marks around the answer that are no text.
    """
    if isinstance(request.tool_choice, NamedToolChoice | CustomToolChoice):
        return NamedCallReader(request.tool_choice.function.name)
    tools = request.shown_tools
    if not tools:
        return None
    by_name = {tool.function.name: tool for tool in tools}
    reader: ToolCallReader | MarkedCallReader
    if family.shape == "json" or request.tool_choice == "required":  # the grammar writes JSON
        reader = ToolCallReader(frozenset(by_name))
    else:
        family = msgspec.structs.replace(family, drop=(*family.drop, *drop))
        reader = MarkedCallReader(family, by_name, special)
    custom = custom_names(request)
    only = frozenset(by_name) if request.only_allowed else None
    return AskedCalls(reader, only, custom) if custom or only is not None else reader


def _enforced(tool: AnyTool, without_effect: list[str]) -> dict[str, Any]:
    """The schema of a tool's arguments as far as it is enforced: with `strict`, or refused."""
    take = without_annotations if tool.function.strict else loosened
    schema, let_go = take(_parameters(tool))
    without_effect += told("tools", let_go)
    found: dict[str, Any] = schema
    return found


def _parameters(tool: AnyTool) -> dict[str, Any]:
    return tool.function.parameters or {"type": "object"}
