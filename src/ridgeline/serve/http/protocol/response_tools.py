"""The tools of `/v1/responses`: functions, groups of them, custom tools, and what a server runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag

from ridgeline.serve.http.protocol.exact import Strict
from ridgeline.serve.http.protocol.fields import Text
from ridgeline.serve.http.protocol.tools import MOST_TOOLS, FunctionName, GrammarOfInput, TextInput


class FunctionTool(Strict):
    """A function that the model may call; tools that a server runs are refused."""

    carried_in = "tools"

    type: Literal["function"]
    name: FunctionName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Arguments match the schema exactly; needs `tool_choice` required or a name."""


class FunctionGroup(Strict):
    """Functions of one namespace; the model is told of them as `namespace.name`."""

    carried_in = "tools"

    type: Literal["namespace"]
    name: FunctionName
    description: Text | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MOST_TOOLS)]


class InputGrammar(GrammarOfInput):
    """What a custom tool's input matches."""

    type: Literal["grammar"]


class FreeTool(Strict):
    """A custom tool, whose input is free text."""

    carried_in = "tools"

    type: Literal["custom"]
    name: FunctionName
    description: Text | None = None
    format: Annotated[TextInput | InputGrammar, Field(discriminator="type")] | None = None


class HostedTool(Strict):
    """A tool that OpenAI's servers run themselves: there is none here, and the model has none."""

    carried_in = "tools"

    type: Literal[
        "web_search", "web_search_2025_08_26", "web_search_preview",
        "web_search_preview_2025_03_11", "file_search", "code_interpreter", "image_generation",
        "tool_search",
    ]  # fmt: skip
    execution: Literal["server"] | None = None
    """Who searches for tools; a search that the client runs is to be given as a function."""


def _kind_of_tool(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    if kind in get_args(HostedTool.model_fields["type"].annotation):
        return "hosted"
    return "function" if kind is None else kind


GivenTool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[FunctionGroup, Tag("namespace")]
    | Annotated[FreeTool, Tag("custom")]
    | Annotated[HostedTool, Tag("hosted")],
    Discriminator(_kind_of_tool),
]
GivenTools = Annotated[list[GivenTool], Field(max_length=MOST_TOOLS)]
