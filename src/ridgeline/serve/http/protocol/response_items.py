"""The items of which the input of `/v1/responses` is made: messages, calls, results, thoughts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from ridgeline.serve.http.protocol.exact import Strict
from ridgeline.serve.http.protocol.fields import Text
from ridgeline.serve.http.protocol.response_tools import GivenTools
from ridgeline.serve.http.protocol.tools import FunctionName

MOST_ITEMS = 4096
"""Items of one conversation."""
Status = Literal["in_progress", "completed", "incomplete"]


class InputText(Strict):
    """A text that is given; files and sounds are refused."""

    carried_in = "input"

    type: Literal["input_text", "output_text", "text"]
    text: Text
    logprobs: list[Any] | None = None
    """Given back with an earlier answer; nothing looks at it."""


class InputImage(Strict):
    """An image that is given, by its address or in a data URL."""

    carried_in = "input"

    type: Literal["input_image"]
    image_url: Text
    detail: Literal["auto", "low", "high"] | None = None
    file_id: None = None


def _kind_of_part(part: Any) -> Any:
    kind = _kind_of(part)
    return "text" if kind in ("input_text", "output_text", "text") else kind


InputPart = Annotated[
    Annotated[InputText, Tag("text")] | Annotated[InputImage, Tag("input_image")],
    Discriminator(_kind_of_part),
]
InputParts = Text | Annotated[list[InputPart], Field(min_length=1, fail_fast=True)]


class MessageItem(Strict):
    """A message of the conversation so far."""

    carried_in = "input"

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: InputParts
    id: Text | None = None
    status: Status | None = None

    @model_validator(mode="after")
    def _images_are_users(self) -> MessageItem:
        parts = [] if isinstance(self.content, str) else self.content
        if self.role != "user" and any(isinstance(part, InputImage) for part in parts):
            raise ValueError("images belong into messages of the user")
        return self


class CallItem(Strict):
    """A call in an earlier answer, given back."""

    carried_in = "input"

    type: Literal["function_call"]
    call_id: Text
    name: FunctionName
    arguments: Text
    id: Text | None = None
    status: Status | None = None
    caller: None = None
    namespace: FunctionName | None = None
    """The group that the function was given in."""
    async_: None = Field(None, alias="async")


class CallOutputItem(Strict):
    """What a called function returned."""

    carried_in = "input"

    type: Literal["function_call_output"]
    call_id: Text
    output: InputParts
    id: Text | None = None
    status: Status | None = None


class CustomCallItem(Strict):
    """A call of a custom tool in an earlier answer, given back."""

    carried_in = "input"

    type: Literal["custom_tool_call"]
    call_id: Text
    name: FunctionName
    input: Text
    id: Text | None = None
    status: Status | None = None


class CustomOutputItem(Strict):
    """What a called custom tool returned."""

    carried_in = "input"

    type: Literal["custom_tool_call_output"]
    call_id: Text
    output: InputParts
    id: Text | None = None
    status: Status | None = None


class ThoughtText(Strict):
    """A piece of an earlier thought."""

    carried_in = "input"

    type: Literal["reasoning_text", "summary_text"]
    text: Text


class ThoughtItem(Strict):
    """The thoughts before an earlier answer, given back; encrypted ones only their server reads."""

    carried_in = "input"

    type: Literal["reasoning"]
    id: Text | None = None
    summary: Annotated[list[ThoughtText], Field(fail_fast=True)] | None = None
    content: Annotated[list[ThoughtText], Field(fail_fast=True)] | None = None
    status: Status | None = None


class ToolsItem(Strict):
    """Tools that came within the conversation; the model is told of them with the others."""

    carried_in = "input"

    type: Literal["additional_tools", "tool_search_output"]
    role: Literal["developer", "system"] | None = None
    tools: GivenTools
    call_id: Text | None = None
    execution: Literal["client", "server"] | None = None
    id: Text | None = None
    status: Status | None = None


class SearchCallItem(Strict):
    """A search by another server in an earlier answer, given back without what it found.

    Tools that were found come in an item of their own, of which the model is told.
    """

    type: Literal["tool_search_call", "web_search_call", "file_search_call"]
    results: None = None

    @model_validator(mode="before")
    @classmethod
    def _its_kind_alone(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {"type": given.get("type"), "results": given.get("results") or None}


def _kind_of(item: Any) -> Any:
    """The type of an item, which messages may leave out."""
    if isinstance(item, dict):
        return item.get("type", "message")
    return getattr(item, "type", None)


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[CustomCallItem, Tag("custom_tool_call")]
    | Annotated[CustomOutputItem, Tag("custom_tool_call_output")]
    | Annotated[ThoughtItem, Tag("reasoning")]
    | Annotated[ToolsItem, Tag("additional_tools")]
    | Annotated[ToolsItem, Tag("tool_search_output")]
    | Annotated[SearchCallItem, Tag("tool_search_call")]
    | Annotated[SearchCallItem, Tag("web_search_call")]
    | Annotated[SearchCallItem, Tag("file_search_call")],
    Discriminator(_kind_of),
]


InputItems = (
    Text | Annotated[list[InputItem], Field(min_length=1, max_length=MOST_ITEMS, fail_fast=True)]
)
