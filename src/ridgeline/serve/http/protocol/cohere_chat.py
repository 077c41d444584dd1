"""The request of Cohere's `/v2/chat`: a chat in other words."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from ridgeline.serve.http.protocol.exact import Strict, few
from ridgeline.serve.http.protocol.fields import AskedModel, StopString, Text
from ridgeline.serve.http.protocol.tools import MOST_TOOLS, Tool

NAMES = {
    "response_format": "response_format",
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "thinking",
    "thinking_token_budget": "thinking",
    "top_k": "k",
    "top_p": "p",
    "stop": "stop_sequences",
}
"""Fields of a chat by their name here, for errors."""
Given = Annotated[dict[str, Any], few(64)]


class CohereFormat(Strict):
    """JSON, of any shape or of a schema's."""

    type: Literal["text", "json_object"]
    json_schema: dict[str, Any] | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    """The older name of the same."""


class CitationOptions(Strict):
    """How answers are to cite documents, which no answer here does."""

    mode: Literal["ENABLED", "DISABLED", "FAST", "ACCURATE", "OFF"] | None = None


class CohereThinking(Strict):
    """Whether the model thinks first."""

    type: Literal["enabled", "disabled"]
    token_budget: int | None = Field(None, ge=0)


class CohereDocument(Strict):
    """A source of the answer."""

    data: dict[str, Any]
    id: Text | None = None


class CohereChatRequest(Strict):
    """A conversation to be answered, in Cohere's words."""

    model: AskedModel = ""
    messages: list[Given] = Field(min_length=1, max_length=4096)
    tools: list[Tool] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    strict_tools: bool | None = None
    documents: list[Text | CohereDocument] | None = Field(None, max_length=1024)
    citation_options: CitationOptions | None = None
    response_format: CohereFormat | None = None
    safety_mode: Literal["OFF", "NONE"] | None = None
    """Others put a text of Cohere's before the conversation, which is not here."""
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    stop_sequences: list[StopString] | None = Field(None, max_length=256)
    temperature: float | None = Field(None, ge=0, le=2)
    seed: int | None = Field(None, ge=0, lt=2**63)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    k: int | None = Field(None, ge=0, lt=2**31)
    p: float | None = Field(None, ge=0, le=1)
    logprobs: bool | None = None
    thinking: CohereThinking | None = None
    priority: int | None = Field(None, ge=0, lt=1000)
    stream: bool | None = None
    return_prompt: Literal[False] | None = None
    raw_prompting: Literal[False] | None = None

    @property
    def without_effect(self) -> list[str]:
        """What was given and has no effect."""
        wanted = None if self.citation_options is None else self.citation_options.mode
        return [] if wanted in (None, "OFF", "DISABLED") else ["citation_options"]

    def chat_fields(self) -> dict[str, Any]:
        """The fields of the chat that asks the same. Raises ApiError."""
        same = {"model", "temperature", "seed", "frequency_penalty", "presence_penalty",
                "logprobs", "priority", "stream"}  # fmt: skip
        asked = self.model_dump(include=same, exclude_none=True)
        more = {
            "messages": [_message(one) for one in self.messages],
            "max_completion_tokens": self.max_tokens,
            "stop": self.stop_sequences or None,
            "top_k": self.k,
            "top_p": self.p,
            "tools": [self._tool(one) for one in self.tools or []] or None,
            "tool_choice": self.tool_choice and self.tool_choice.lower(),
            "response_format": self._format(),
            "documents": [_document(one) for one in self.documents or []] or None,
            "reasoning_effort": self._effort(),
            "thinking_token_budget": None if self.thinking is None else self.thinking.token_budget,
        }
        return {**asked, **{name: value for name, value in more.items() if value is not None}}

    def _tool(self, tool: Tool) -> dict[str, Any]:
        given = tool.model_dump(exclude_none=True)
        if self.strict_tools is not None:
            given["function"]["strict"] = self.strict_tools
        return given

    def _format(self) -> dict[str, Any] | None:
        wanted = self.response_format
        if wanted is None:
            return None
        schema = wanted.json_schema or wanted.schema_
        if wanted.type == "text" or schema is None:
            return {"type": wanted.type}
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}

    def _effort(self) -> str | None:
        return "none" if self.thinking and self.thinking.type == "disabled" else None


def _message(given: dict[str, Any]) -> dict[str, Any]:
    """A message as chats have it: a plan of calls is what was said, and documents are texts."""
    message = dict(given)
    plan = message.pop("tool_plan", None)
    if isinstance(plan, str) and not message.get("content"):
        message["content"] = plan
    if isinstance(message.get("content"), list):
        message["content"] = [_part(one) for one in message["content"]]
    return message


def _part(given: Any) -> Any:
    match given:
        case {"type": "document", "document": {"data": data}}:
            text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
            return {"type": "text", "text": text}
    return given


def _document(given: str | CohereDocument) -> dict[str, Any]:
    if isinstance(given, str):
        return {"text": given}
    return given.data if given.id is None else {"id": given.id, **given.data}
