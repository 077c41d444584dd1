"""What a request asks of tools: a grammar that forces calls or keeps them strict, and a reader."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ridgeline.serve.http.asked_calls import AskedCalls
from ridgeline.serve.http.marked_calls import MarkedCallReader
from ridgeline.serve.http.protocol.chat import ChatRequest
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.exact import told
from ridgeline.serve.http.protocol.fields import json_text, schema_grammar
from ridgeline.serve.http.protocol.tools import CustomTool, CustomToolChoice, NamedToolChoice, Tool
from ridgeline.serve.http.tool_calls import NamedCallReader, ToolCallReader
from ridgeline.serve.http.tool_families import ToolFamily
from ridgeline.serve.messages import Grammar
from ridgeline.serve.sampling.schema_forms import placed
from ridgeline.serve.sampling.schema_loosening import loosened, without_annotations

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
        family = replace(family, drop=(*family.drop, *drop))
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
