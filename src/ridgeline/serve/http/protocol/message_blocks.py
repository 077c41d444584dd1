"""The turns of `/v1/messages` and the blocks of which they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ridgeline.serve.http.protocol.exact import Strict, few
from ridgeline.serve.http.protocol.fields import Text
from ridgeline.serve.http.protocol.tools import FunctionName

CacheControl = Annotated[dict[str, Any], few(8)] | None
"""What to keep in the prefix cache, which keeps what fits, for everybody."""


class TextBlock(Strict):
    """A block of text."""

    carried_in = "messages"

    type: Literal["text"]
    text: Text
    cache_control: CacheControl = None


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


class ForeignBlock(Strict):
    """What another server made of an earlier answer and no model here can read, given back.

    Encrypted thoughts, a search that it ran and the encrypted pages it found, and the mark that
    another model went on.
    """

    type: Literal["redacted_thinking", "server_tool_use", "web_search_tool_result", "fallback"]

    @model_validator(mode="before")
    @classmethod
    def _its_kind_alone(cls, given: Any) -> Any:
        return {"type": given.get("type")} if isinstance(given, dict) else given


class ToolUseBlock(Strict):
    """A call in an earlier answer, given back."""

    carried_in = "messages"

    type: Literal["tool_use"]
    id: Text
    name: FunctionName
    input: dict[str, Any]
    cache_control: CacheControl = None


class PlainDocument(Strict):
    """A document's text; PDF and files are refused."""

    type: Literal["text"]
    media_type: Literal["text/plain"] = "text/plain"
    data: Text

    @property
    def text(self) -> str:
        """The text that it says."""
        return self.data


class DocumentParts(Strict):
    """A document's text in parts."""

    type: Literal["content"]
    content: Text | Annotated[list[TextBlock], Field(fail_fast=True)]

    @property
    def text(self) -> str:
        """The text that it says."""
        return joined(self.content)


class Citations(Strict):
    """Whether the answer is to cite, which none here does."""

    enabled: bool | None = None


class DocumentBlock(Strict):
    """A document; the model is told its text, with title and context before it."""

    carried_in = "messages"

    type: Literal["document"]
    source: Annotated[PlainDocument | DocumentParts, Field(discriminator="type")]
    title: Text | None = None
    context: Text | None = None
    citations: Citations | None = None

    @property
    def text(self) -> str:
        """What the model is told."""
        return "\n".join(one for one in (self.title, self.context, self.source.text) if one)


class ToolReference(Strict):
    """The name of a tool that the client's own search found; the model is told of all of them."""

    carried_in = "messages"

    type: Literal["tool_reference"]
    tool_name: FunctionName

    @property
    def text(self) -> str:
        """What the model is told."""
        return self.tool_name


class SearchResultBlock(Strict):
    """What the client's own search found."""

    carried_in = "messages"

    type: Literal["search_result"]
    source: Text
    title: Text
    content: Annotated[list[TextBlock], Field(fail_fast=True)]
    citations: Citations | None = None

    @property
    def text(self) -> str:
        """What the model is told."""
        return "\n".join((self.title, self.source, joined(self.content)))


def joined(content: str | Sequence[SaidBlock]) -> str:
    """The text of a content."""
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


SaidBlock = TextBlock | DocumentBlock | SearchResultBlock | ToolReference
"""What is told to the model as text."""
TextBlocks = Text | Annotated[list[TextBlock], Field(fail_fast=True)]
ResultBlock = Annotated[SaidBlock | ImageBlock, Field(discriminator="type")]


class ToolResultBlock(Strict):
    """What a called tool returned."""

    carried_in = "messages"

    type: Literal["tool_result"]
    tool_use_id: Text
    content: Text | Annotated[list[ResultBlock], Field(fail_fast=True)] | None = None
    is_error: bool | None = None
    """The content says so to the model; templates know no other way."""
    cache_control: CacheControl = None


UserBlock = Annotated[
    TextBlock | ImageBlock | ToolResultBlock | DocumentBlock | SearchResultBlock,
    Field(discriminator="type"),
]
AssistantBlock = Annotated[
    TextBlock | ThinkingBlock | ForeignBlock | ToolUseBlock, Field(discriminator="type")
]


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


class SystemTurn(Strict):
    """What the system says within the conversation, as Claude Code's requests have it."""

    carried_in = "messages"

    role: Literal["system"]
    content: Text | Annotated[list[TextBlock], Field(min_length=1, fail_fast=True)]


Turn = Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]
