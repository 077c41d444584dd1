"""The shapes of tools in chats: functions, and custom tools, whose input is free text.

A custom tool is shown to the model as a function of one text, `input`, which every template knows
how to show and every family how to call; `tool_request.AskedCalls` takes the text out again.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BeforeValidator, Discriminator, Field, Tag

from ridgeline.serve.http.protocol.exact import Strict
from ridgeline.serve.http.protocol.fields import Text
from ridgeline.serve.http.protocol.other_words import as_json

FunctionName = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[\w.:/@+-]+$")]
"""OpenAI's letters, and what servers of tools put between their name and the tool's."""
MOST_TOOLS = 1024


class FunctionDefinition(Strict):
    """A function and the JSON schema of its arguments."""

    carried_in = "tools"

    name: FunctionName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Arguments match the schema exactly; needs `tool_choice` required or a name."""


class Tool(Strict):
    """A function that the model may call."""

    carried_in = "tools"

    type: Literal["function"] = "function"
    function: FunctionDefinition


class TextInput(Strict):
    """The input of a custom tool: any text."""

    type: Literal["text"]


class GrammarOfInput(Strict):
    """What the input of a custom tool matches."""

    syntax: Literal["lark", "regex"]
    definition: Text


class GrammarInput(Strict):
    """The input of a custom tool: a text that matches a grammar."""

    type: Literal["grammar"]
    grammar: GrammarOfInput


class CustomDefinition(Strict):
    """A custom tool, whose input is free text."""

    carried_in = "tools"

    name: FunctionName
    description: Text | None = None
    format: Annotated[TextInput | GrammarInput, Field(discriminator="type")] | None = None


class CustomTool(Strict):
    """A custom tool that the model may call."""

    carried_in = "tools"

    type: Literal["custom"]
    custom: CustomDefinition

    @property
    def grammar(self) -> GrammarOfInput | None:
        """What its input matches."""
        wanted = self.custom.format
        return wanted.grammar if isinstance(wanted, GrammarInput) else None

    @property
    def function(self) -> FunctionDefinition:
        """The function that the model is shown."""
        told = [self.custom.description] if self.custom.description else []
        if (grammar := self.grammar) is not None:
            told.append(f"The input matches this {grammar.syntax} grammar:\n{grammar.definition}")
        return FunctionDefinition(
            name=self.custom.name, description="\n\n".join(told) or None, parameters=FREE_INPUT
        )


FREE_INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The schema of a custom tool as a function."""


def _kind(given: Any) -> Any:
    """The type of a tool, a call, or a choice, which those of functions may leave out."""
    if isinstance(given, dict):
        return given.get("type", "function")
    return getattr(given, "type", None)


AnyTool = Annotated[
    Annotated[Tool, Tag("function")] | Annotated[CustomTool, Tag("custom")], Discriminator(_kind)
]


class NamedFunction(Strict):
    """The function that must be called."""

    name: FunctionName


class NamedToolChoice(Strict):
    """`tool_choice` as an object."""

    type: Literal["function"] = "function"
    function: NamedFunction


class CustomToolChoice(Strict):
    """`tool_choice` that names a custom tool."""

    type: Literal["custom"]
    custom: NamedFunction

    @property
    def function(self) -> NamedFunction:
        """The function by which the model knows it."""
        return self.custom


NamedChoice = Annotated[
    Annotated[NamedToolChoice, Tag("function")] | Annotated[CustomToolChoice, Tag("custom")],
    Discriminator(_kind),
]


class CalledFunction(Strict):
    """A function that an earlier completion called, given back by the client."""

    carried_in = "messages"

    name: FunctionName
    arguments: Annotated[Text, BeforeValidator(as_json)]
    """JSON, as the model wrote it."""


class GivenToolCall(Strict):
    """A call in an earlier completion, given back by the client."""

    carried_in = "messages"

    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    """Its place among the calls, as streams tell it: GLM's say -1."""


class CalledCustomTool(Strict):
    """A custom tool that an earlier completion called, given back by the client."""

    carried_in = "messages"

    name: FunctionName
    input: Text


class GivenCustomCall(Strict):
    """A call of a custom tool in an earlier completion, given back by the client."""

    carried_in = "messages"

    id: Text
    type: Literal["custom"]
    custom: CalledCustomTool
    index: int | None = None

    @property
    def function(self) -> CalledFunction:
        """The call as the model wrote it."""
        arguments = json.dumps({"input": self.custom.input}, ensure_ascii=False)
        return CalledFunction(name=self.custom.name, arguments=arguments)


AnyGivenCall = Annotated[
    Annotated[GivenToolCall, Tag("function")] | Annotated[GivenCustomCall, Tag("custom")],
    Discriminator(_kind),
]


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call's name and arguments; in a stream the name comes once, arguments in pieces."""

    name: str | None = None
    arguments: str


class CustomCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A custom tool's name and input, in a stream as a function's."""

    name: str | None = None
    input: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of a tool; `index` in streams only, `id` and `type` in its first chunk only."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None
    custom: CustomCall | None = None

    @classmethod
    def of(
        cls,
        kind: Literal["function", "custom"],
        name: str | None,
        arguments: str,
        *,
        call_id: str | None,
        index: int | None = None,
    ) -> ToolCall:
        """A call of either kind, or what a chunk adds to one that has its id already."""
        told = None if call_id is None else kind
        if kind == "custom":
            custom = CustomCall(name=name, input=arguments)
            return cls(index=index, id=call_id, type=told, custom=custom)
        function = FunctionCall(name=name, arguments=arguments)
        return cls(index=index, id=call_id, type=told, function=function)
