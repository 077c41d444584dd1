"""What `tools` and `tool_choice` ask of an answer: the grammar that forces a call, the reader."""

from __future__ import annotations

from typing import Any

from ridgeline.serve.http.protocol.chat import ChatRequest
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.sampling import schema_grammar
from ridgeline.serve.http.protocol.tools import NamedToolChoice, Tool
from ridgeline.serve.http.tool_calls import NamedCallReader, ToolCallReader
from ridgeline.serve.messages import Grammar

Reader = ToolCallReader | NamedCallReader


def tools_of(request: ChatRequest) -> list[Tool]:
    """The tools that the model is told of."""
    return [] if request.tool_choice == "none" else request.tools or []


def check_tools(request: ChatRequest) -> None:
    """Raises ApiError where tools and choice do not fit."""
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
    """What makes the answer a call: None where the model is free."""
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
    """Finds the calls in one answer; None where none may come."""
    if isinstance(request.tool_choice, NamedToolChoice):
        return NamedCallReader(request.tool_choice.function.name)
    tools = tools_of(request)
    return ToolCallReader(frozenset(tool.function.name for tool in tools)) if tools else None


def _parameters(tool: Tool) -> dict[str, Any]:
    return tool.function.parameters or {"type": "object"}
