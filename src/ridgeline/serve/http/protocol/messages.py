"""The request of `/v1/messages`, as clients of Anthropic's API send it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ridgeline.serve.http.protocol.chat import Variables
from ridgeline.serve.http.protocol.fields import StopString, Strict, Text, few
from ridgeline.serve.http.protocol.tools import MOST_TOOLS, FunctionName

CacheControl = Annotated[dict[str, Any], few(8)] | None
"""What to keep in the prefix cache, which keeps what fits, for everybody."""


class TextBlock(Strict):
    """A block of text; documents are refused."""

    carried_in = "messages"

    type: Literal["text"]
    text: Text
    cache_control: CacheControl = None
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


class InlineImage(Strict):
    """The bytes of an image."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: Text


class LinkedImage(Strict):
    """The address of an image."""

    type: Literal["url"]
    url: Text


class ImageBlock(Strict):
    """A block with an image."""

    carried_in = "messages"

    type: Literal["image"]
    source: Annotated[InlineImage | LinkedImage, Field(discriminator="type")]
    cache_control: CacheControl = None


class ThinkingBlock(Strict):
    """The thoughts before an earlier answer, given back."""

    carried_in = "messages"

    type: Literal["thinking"]
    thinking: Text
    signature: Text | None = None


class ToolUseBlock(Strict):
    """A call in an earlier answer, given back."""

    carried_in = "messages"

    type: Literal["tool_use"]
    id: Text
    name: FunctionName
    input: dict[str, Any]
    cache_control: CacheControl = None
    caller: None = None
    toolset_name: None = None


TextBlocks = Text | Annotated[list[TextBlock], Field(fail_fast=True)]


class ToolResultBlock(Strict):
    """What a called tool returned."""

    carried_in = "messages"

    type: Literal["tool_result"]
    tool_use_id: Text
    content: TextBlocks | None = None
    is_error: bool | None = None
    """The content says so to the model; templates know no other way."""
    cache_control: CacheControl = None


UserBlock = Annotated[TextBlock | ImageBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]


class UserTurn(Strict):
    """What the user says, and what tools returned."""

    carried_in = "messages"

    role: Literal["user"]
    content: Text | Annotated[list[UserBlock], Field(min_length=1, fail_fast=True)]


class AssistantTurn(Strict):
    """An earlier answer; the last one of a conversation is the beginning of the next."""

    carried_in = "messages"

    role: Literal["assistant"]
    content: Text | Annotated[list[AssistantBlock], Field(min_length=1, fail_fast=True)]


Turn = Annotated[UserTurn | AssistantTurn, Field(discriminator="role")]


class InputTool(Strict):
    """A tool of the client's; those that a server runs are refused."""

    carried_in = "tools"

    type: Literal["custom"] | None = None
    name: FunctionName
    description: Text | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    """The input matches the schema exactly; needs `tool_choice` any or tool."""
    cache_control: CacheControl = None


class ToolPreference(Strict):
    """Whether tools may, must or may not be used."""

    type: Literal["auto", "any", "none", "tool"]
    name: FunctionName | None = None
    """The tool that must be used, with the type tool."""
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _a_name_with_tool_alone(self) -> ToolPreference:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("a name goes with the type tool, and only with it")
        return self


class ThinkingOptions(Strict):
    """Whether the model thinks first; no budget of thoughts is kept here."""

    type: Literal["disabled", "adaptive", "enabled"]
    budget_tokens: int | None = Field(None, ge=1, lt=2**31)
    """Refused where the model thinks; where it does not, nothing is to be kept."""
    display: Literal["summarized", "omitted"] | None = None


class SchemaFormat(Strict):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputOptions(Strict):
    """How hard the model thinks, and what its answer must match."""

    effort: Literal["low", "medium", "high", "xhigh"] | None = None
    format: SchemaFormat | None = None


class RequestMetadata(Strict):
    """The person who asks, as the client calls them."""

    user_id: str | None = Field(None, max_length=512)
    """Stands in the request's log line."""


class KeptThoughts(Strict):
    """An edit of a conversation that leaves its thoughts as they are."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"]


class ContextManagement(Strict):
    """What a server takes out of a long conversation: nothing here, so nothing may be asked for."""

    edits: Annotated[list[KeptThoughts], Field(max_length=16)] | None = None


class MessagesRequest(Strict):
    """A conversation to be answered, in Anthropic's words."""

    hints: ClassVar[frozenset[str]] = frozenset(
        {"service_tier", "cache_control", "context_management"}
    )

    model: Annotated[str, Field(min_length=1, max_length=512)]
    messages: list[Turn] = Field(min_length=1, max_length=4096)
    max_tokens: int = Field(ge=1, lt=2**31)
    system: TextBlocks | None = None
    stop_sequences: Annotated[list[StopString], Field(max_length=16)] | None = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, lt=2**31)
    tools: list[InputTool] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: ToolPreference | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputOptions | None = None
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    cache_control: CacheControl = None
    chat_template_kwargs: Variables | None = None
    context_management: ContextManagement | None = None
    container: None = None
    thread: None = None
    """A conversation that a server keeps; clients go on without where they are told so."""
    mcp_servers: Annotated[list[Any], Field(max_length=0)] | None = None

    @property
    def without_effect(self) -> list[str]:
        """The hints that were given; the reply names them in a header."""
        return sorted(name for name in self.hints if getattr(self, name) is not None)


class PromptCountRequest(MessagesRequest):
    """A conversation whose tokens are counted, and which may be as long as it likes."""

    max_tokens: int = Field(1, ge=1, lt=2**31)
