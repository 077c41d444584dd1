"""Functions that a chat's model may call."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from ridgeline.serve.http.protocol.strict import Strict, Text

FunctionName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]


class FunctionDefinition(Strict):
    """A function and the JSON schema of its arguments."""

    name: FunctionName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Arguments match the schema exactly; needs `tool_choice` required or a name."""


class Tool(Strict):
    """Only functions."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Strict):
    """The function that must be called."""

    name: FunctionName


class NamedToolChoice(Strict):
    """`tool_choice` as an object."""

    type: Literal["function"]
    function: NamedFunction


class CalledFunction(Strict):
    """Of an earlier answer, given back by the client."""

    name: FunctionName
    arguments: Text
    """JSON, as the model wrote it."""


class GivenToolCall(Strict):
    """Of an earlier answer, given back by the client."""

    id: Text
    type: Literal["function"]
    function: CalledFunction


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """In an answer: name and arguments; in a stream the name comes once, arguments in pieces."""

    name: str | None = None
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call; `index` in streams only, `id` and `type` in a call's first chunk only."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionCall
