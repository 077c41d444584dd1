"""The messages of a chat, and the parts of their contents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from ridgeline.serve.http.protocol.exact import Strict
from ridgeline.serve.http.protocol.fields import Text
from ridgeline.serve.http.protocol.other_words import as_content, as_part, as_turn
from ridgeline.serve.http.protocol.tools import AnyGivenCall


class TextPart(Strict):
    """A part of a message's text."""

    carried_in = "messages"

    type: Literal["text"]
    text: Text


class ImageAddress(Strict):
    """Where an image is."""

    url: Text
    """A data URL, or an https address whose host the server allows."""
    detail: Literal["auto", "low", "high"] | None = None
    """How closely to look; the model's processor looks as it always does."""


class ImagePart(Strict):
    """An image in a message; sounds and videos are refused."""

    carried_in = "messages"

    type: Literal["image_url"]
    image_url: ImageAddress | Text

    @property
    def url(self) -> str:
        """Where it is, in either form."""
        given = self.image_url
        return given if isinstance(given, str) else given.url

    @property
    def asks_for_detail(self) -> bool:
        """Whether it says how closely to look."""
        given = self.image_url
        return isinstance(given, ImageAddress) and given.detail in ("low", "high")


Part = Annotated[
    Annotated[TextPart | ImagePart, Field(discriminator="type")], BeforeValidator(as_part)
]
GivenText = Annotated[TextPart, BeforeValidator(as_part)]
Content = Annotated[
    Text | Annotated[list[GivenText], Field(min_length=1, fail_fast=True)],
    BeforeValidator(as_content),
]


class ChatTurn(Strict):
    """What messages of every role may have."""

    carried_in = "messages"

    name: Text | None = None
    type: Literal["text", "message"] | None = None
    """What some clients write beside the role; every message is one."""


Parts = Annotated[
    Text | Annotated[list[Part], Field(min_length=1, fail_fast=True)], BeforeValidator(as_content)
]
"""A text, or texts and images in their order."""


class SeenTurn(ChatTurn):
    """A message that may show images."""

    content: Parts

    @property
    def images(self) -> list[ImagePart]:
        """The images in it, in order."""
        if isinstance(self.content, str):
            return []
        return [part for part in self.content if isinstance(part, ImagePart)]


class InstructionMessage(ChatTurn):
    """What the model is told to be; templates know both roles as "system"."""

    role: Literal["system", "developer"]
    content: Content


class UserMessage(SeenTurn):
    """What the user says."""

    role: Literal["user"]


class AssistantMessage(ChatTurn):
    """An earlier completion, as it was received."""

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: Annotated[list[AnyGivenCall], Field(fail_fast=True)] | None = None
    refusal: Text | None = None
    """What it said in place of an answer."""
    audio: None = None
    function_call: None = None
    reasoning_content: Text | None = None
    """Its thoughts, for the template."""
    reasoning: Text | None = None
    """The newer name of the same."""

    @property
    def thoughts(self) -> str | None:
        """What was thought, by either name."""
        return self.reasoning_content or self.reasoning

    @model_validator(mode="before")
    @classmethod
    def _as_turn(cls, given: Any) -> Any:
        return as_turn(given)

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        if not self.model_fields_set & {"content", "refusal", "tool_calls"} and not self.thoughts:
            raise ValueError("an assistant message needs content or tool_calls")
        if len({self.reasoning_content, self.reasoning} - {None}) > 1:
            raise ValueError("reasoning_content is the older name of reasoning: they differ")
        return self


class ToolMessage(SeenTurn):
    """What a called function returned."""

    role: Literal["tool"]
    tool_call_id: Text | None = None


class OwnMessage(ChatTurn):
    """A message in a role that only some templates have, such as Granite's "control"."""

    role: Annotated[str, Field(pattern=r"^[A-Za-z][\w ./-]{0,63}$")]
    content: Content


def _kind_of(given: Any) -> Any:
    """The role of a message, by which it is read."""
    role = given.get("role") if isinstance(given, dict) else getattr(given, "role", None)
    known = ("system", "developer", "user", "assistant", "tool")
    return role if role in known or not isinstance(role, str) else "own"


Message = Annotated[
    Annotated[InstructionMessage, Tag("system")]
    | Annotated[InstructionMessage, Tag("developer")]
    | Annotated[UserMessage, Tag("user")]
    | Annotated[AssistantMessage, Tag("assistant")]
    | Annotated[ToolMessage, Tag("tool")]
    | Annotated[OwnMessage, Tag("own")],
    Discriminator(_kind_of),
]
