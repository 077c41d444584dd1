"""The requests of Cohere's `/v2/chat` and of its older `/v1/chat`: chats in other words.

Clients still send the older one (`cohere.Client.chat`): one message and what was said before it.
Tools were written in another way then, and are refused by their name, as everything is that
`/v2/chat` does not know.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.exact import Strict, few
from ridgeline.serve.http.protocol.fields import AskedModel, StopString, Text
from ridgeline.serve.http.protocol.tools import MOST_TOOLS, Tool

_ROLES = {"USER": "user", "CHATBOT": "assistant", "SYSTEM": "system"}
_QUALITY = {"fast": "FAST", "accurate": "ACCURATE", "off": "OFF"}


def as_newer(given: dict[str, Any]) -> dict[str, Any]:
    """The body of the `/v2/chat` that asks the same.

    >>> said = {"role": "CHATBOT", "message": "b"}
    >>> as_newer({"message": "c", "preamble": "a", "chat_history": [said]})["messages"][1:]
    [{'role': 'assistant', 'content': 'b'}, {'role': 'user', 'content': 'c'}]

    What has another shape than that API's is left for `/v2/chat` to refuse.

    Raises:
        ApiError: 400, there is no message.
    """
    if not isinstance(given.get("message"), str):
        raise refused("message: Input should be a text", "message")
    asked = {name: one for name, one in given.items() if name not in ("message", "chat_history")}
    messages = [_turn(one) for one in _listed(given.get("chat_history"))]
    preamble = asked.pop("preamble", None)
    if preamble is not None:
        messages.insert(0, {"role": "system", "content": preamble})
    asked["messages"] = [*messages, {"role": "user", "content": given["message"]}]
    if isinstance(asked.get("documents"), list):
        asked["documents"] = [{"data": one} for one in asked["documents"]]
    quality = asked.pop("citation_quality", None)
    if quality is not None:
        asked["citation_options"] = {"mode": _QUALITY.get(quality, quality)}
    if asked.get("prompt_truncation") == "OFF":
        del asked["prompt_truncation"]
    return asked


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [] if given is None else [given]


def _turn(given: Any) -> Any:
    match given:
        case {"role": str() as role, "message": said, **others} if role in _ROLES:
            return {"role": _ROLES[role], "content": said, **others}
    return given


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
