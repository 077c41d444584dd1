"""What may be taken out of a long conversation of `/v1/messages` before the model is told of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ridgeline.serve.http.protocol.exact import Strict
from ridgeline.serve.http.protocol.tools import MOST_TOOLS, FunctionName


class ThinkingTurns(Strict):
    """A number of the last answers that have thoughts."""

    type: Literal["thinking_turns"]
    value: int = Field(ge=1, lt=2**31)


class ToolUses(Strict):
    """A number of calls of tools."""

    type: Literal["tool_uses"]
    value: int = Field(ge=0, lt=2**31)


class InputTokens(Strict):
    """A number of the prompt's tokens."""

    type: Literal["input_tokens"]
    value: int = Field(ge=0, lt=2**31)


class ClearThoughts(Strict):
    """Take the thoughts out of all answers but the last ones."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] | ThinkingTurns | None = None
    """The last one's stay, if absent."""


class ClearToolUses(Strict):
    """Take out what all calls but the last ones returned, where the conversation is long."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: Annotated[InputTokens | ToolUses, Field(discriminator="type")] | None = None
    """Beyond which length it is done; 100,000 tokens, if absent."""
    keep: ToolUses | None = None
    """The last three stay, if absent."""
    clear_at_least: InputTokens | None = None
    """It is not done where it would save fewer."""
    exclude_tools: Annotated[list[FunctionName], Field(max_length=MOST_TOOLS)] | None = None
    """Tools of which all stays."""
    clear_tool_inputs: bool | None = None
    """Whether the arguments of these calls go, too."""


class ContextManagement(Strict):
    """What is taken out of a conversation, in this order."""

    edits: (
        Annotated[
            list[Annotated[ClearThoughts | ClearToolUses, Field(discriminator="type")]],
            Field(max_length=16),
        ]
        | None
    ) = None
