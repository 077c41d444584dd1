"""The requests of Google's API, `models/NAME:generateContent` and its like: chats in other words.

Fields are written in either of two ways, `topK` or `top_k`; schemas have their types in capitals;
what a tool returned stands in the user's turn.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.fields import LARGEST_INT, MOST_LOGPROBS, StopString, Text
from ridgeline.serve.http.protocol.google_content import (
    Content,
    GoogleFields,
    listed,
    messages_of,
)
from ridgeline.serve.http.protocol.tools import MOST_TOOLS, FunctionName

NAMES = {
    "messages": "contents",
    "max_completion_tokens": "generationConfig.maxOutputTokens",
    "response_format": "generationConfig.responseSchema",
    "reasoning_effort": "generationConfig.thinkingConfig",
    "thinking_token_budget": "generationConfig.thinkingConfig.thinkingBudget",
    "n": "generationConfig.candidateCount",
    "tool_choice": "toolConfig",
}
"""Fields of a chat by their name here, for errors."""
_PATH = re.compile(r"/v1(?:beta)?/models/(?P<name>.+):(?P<what>\w+)")


def model_of_path(path: str) -> str | None:
    """The model that a path of this API names; None: it is another one.

    >>> model_of_path("/v1beta/models/org/library:generateContent"), model_of_path("/v1/models/a")
    ('org/library', None)
    """
    found = _PATH.fullmatch(path)
    return None if found is None else found["name"]


class Declaration(GoogleFields):
    """A function that the model may call."""

    carried_in = "tools"

    name: FunctionName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    behavior: Literal["BLOCKING"] | None = None

    @property
    def tool(self) -> dict[str, Any]:
        """The same as a tool of a chat."""
        schema = self.parameters_json_schema or as_json_schema(self.parameters)
        more = {"description": self.description, "parameters": schema}
        given = {name: value for name, value in more.items() if value is not None}
        return {"type": "function", "function": {"name": self.name, **given}}


class CallingConfig(GoogleFields):
    """Whether functions are called."""

    mode: Annotated[
        Literal["MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"] | None,
        BeforeValidator(lambda one: one.upper() if isinstance(one, str) else one),
    ] = None
    allowed_function_names: list[FunctionName] | None = Field(None, max_length=MOST_TOOLS)


class ToolConfig(GoogleFields):
    """How tools are used."""

    function_calling_config: CallingConfig | None = None
    include_server_side_tool_invocations: bool | None = None
    """Whether calls of tools that Google's servers run are told; there are none."""


class ThinkingConfig(GoogleFields):
    """How much the model thinks first, and whether the reply has its thoughts."""

    include_thoughts: bool | None = None
    thinking_budget: int | None = Field(None, ge=-1)
    thinking_level: str | None = None


class GenerationConfig(GoogleFields):
    """How an answer is drawn, and what it must be."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    max_output_tokens: int | None = Field(None, ge=1, lt=2**31)
    stop_sequences: list[StopString] | None = Field(None, max_length=256)
    candidate_count: int | None = Field(None, ge=1, le=128)
    seed: int | None = Field(None, ge=-LARGEST_INT, le=LARGEST_INT)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    response_mime_type: Literal["text/plain", "application/json", "text/x.enum"] | None = None
    response_schema: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    response_logprobs: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    response_modalities: list[Literal["TEXT", "text"]] | None = None
    thinking_config: ThinkingConfig | None = None

    def chat_fields(self) -> dict[str, Any]:
        """The same as fields of a chat. Raises ApiError."""
        same = {"temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty"}
        more = {
            "max_completion_tokens": self.max_output_tokens,
            "stop": self.stop_sequences or None,
            "n": self.candidate_count,
            "logprobs": self.response_logprobs,
            "top_logprobs": self.logprobs if self.response_logprobs else None,
            "reasoning_effort": self._effort(),
            "thinking_token_budget": self._most_thoughts(),
            **self._form(),
        }
        found = self.model_dump(include=same, exclude_none=True)
        return found | {name: value for name, value in more.items() if value is not None}

    def _form(self) -> dict[str, Any]:
        schema = self.response_json_schema or as_json_schema(self.response_schema)
        match self.response_mime_type, schema:
            case "text/x.enum", {"enum": list() as choices}:
                return {"structured_outputs": {"choice": choices}}
            case "application/json", None:
                return {"response_format": {"type": "json_object"}}
            case "application/json", dict():
                named = {"schema": schema}
                return {"response_format": {"type": "json_schema", "json_schema": named}}
        if schema is not None:
            raise refused(
                "responseSchema needs responseMimeType: application/json", "responseSchema"
            )
        return {}

    def _most_thoughts(self) -> int | None:
        """The most tokens of thoughts; below 0 the model decides, and 0 is no thinking at all."""
        most = None if self.thinking_config is None else self.thinking_config.thinking_budget
        return most if most is not None and most > 0 else None

    def _effort(self) -> str | None:
        wanted = self.thinking_config
        if wanted is None:
            return None
        if wanted.thinking_budget == 0:
            return "none"
        level = (wanted.thinking_level or "").lower()
        return level if level not in ("", "thinking_level_unspecified") else None


class GenerateContentRequest(GoogleFields):
    """A conversation to be answered, in Google's words."""

    model: Text | None = None
    """What the path says, too."""
    contents: Annotated[
        list[Content], Field(min_length=1, max_length=4096), BeforeValidator(listed)
    ]
    system_instruction: Content | None = None
    tools: Annotated[
        Annotated[list[dict[str, Any]], Field(max_length=128)] | None, BeforeValidator(listed)
    ] = None
    tool_config: ToolConfig | None = None
    generation_config: GenerationConfig | None = None
    safety_settings: list[dict[str, Any]] | None = Field(None, max_length=64)
    """Nothing here tells harmful texts from others."""
    labels: dict[str, Text] | None = None

    @property
    def shows_thoughts(self) -> bool:
        """Whether thoughts are part of the reply, which they are not unless it is asked for."""
        config = self.generation_config
        wanted = None if config is None else config.thinking_config
        return wanted is not None and bool(wanted.include_thoughts)

    @property
    def without_effect(self) -> list[str]:
        """What was given and has no effect."""
        hints = ["safetySettings"] if self.safety_settings else []
        if self.tool_config is not None and self.tool_config.include_server_side_tool_invocations:
            hints.append("toolConfig.includeServerSideToolInvocations")
        others = {name for one in self.tools or [] for name in one if not _declares(name)}
        return [*hints, *sorted(f"tools.{name}" for name in others if name.isidentifier())]

    def chat_fields(self, model: str) -> dict[str, Any]:
        """The fields of the chat that asks the same. Raises ApiError."""
        config = self.generation_config
        instruction = self.system_instruction
        system = [] if instruction is None else [{"role": "system", "content": instruction.text}]
        return {
            "model": model,
            "messages": [*system, *messages_of(self.contents)],
            "include_reasoning": self.shows_thoughts,
            **({} if config is None else config.chat_fields()),
            **self._tools(),
        }

    def _tools(self) -> dict[str, Any]:
        given = [
            Declaration.model_validate(one)
            for tool in self.tools or []
            for name, found in tool.items()
            if _declares(name) and isinstance(found, list)
            for one in found
        ]
        asked = None if self.tool_config is None else self.tool_config.function_calling_config
        mode = "AUTO" if asked is None else asked.mode or "AUTO"
        allowed = None if asked is None else asked.allowed_function_names
        if allowed:
            given = [one for one in given if one.name in allowed]
        if not given:
            return {}
        choice = {"ANY": "required", "NONE": "none"}.get(mode, "auto")
        return {"tools": [one.tool for one in given], "tool_choice": choice}


class CountTokensRequest(GoogleFields):
    """A conversation whose tokens are counted; Vertex's clients say all of it here."""

    model: Text | None = None
    contents: Annotated[
        Annotated[list[Content], Field(max_length=4096)] | None, BeforeValidator(listed)
    ] = None
    system_instruction: Content | None = None
    tools: Annotated[
        Annotated[list[dict[str, Any]], Field(max_length=128)] | None, BeforeValidator(listed)
    ] = None
    generation_config: GenerationConfig | None = None
    generate_content_request: GenerateContentRequest | None = None

    @property
    def conversation(self) -> GenerateContentRequest:
        """The conversation, by whichever name it came."""
        if self.generate_content_request is not None:
            return self.generate_content_request
        if not self.contents:
            raise refused("contents: give some", "contents")
        return GenerateContentRequest(
            contents=self.contents,
            system_instruction=self.system_instruction,
            tools=self.tools,
            safety_settings=None,
        )


class EmbedContentRequest(GoogleFields):
    """A text to become a vector."""

    model: Text | None = None
    content: Content
    task_type: Text | None = None
    """The models here make one vector of a text, whatever it is for."""
    title: Text | None = None
    output_dimensionality: int | None = Field(None, ge=1, lt=2**31)


class BatchEmbedRequest(GoogleFields):
    """Texts to become vectors."""

    model: Text | None = None
    requests: list[EmbedContentRequest] = Field(min_length=1, max_length=1024)


def _declares(name: str) -> bool:
    """Whether this field of a tool has functions; others are what Google's servers run."""
    return name in ("functionDeclarations", "function_declarations")


_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")


def as_json_schema(given: Any) -> Any:
    """A schema in JSON Schema's words.

    Google's clients write types in capitals, what may be null beside the type, and counts as texts.

    >>> as_json_schema({"type": "ARRAY", "items": {"type": "STRING", "nullable": True}})
    {'type': 'array', 'items': {'type': ['string', 'null']}}
    """
    if isinstance(given, list):
        return [as_json_schema(one) for one in given]
    if not isinstance(given, dict):
        return given
    found: dict[str, Any] = {}
    for name, value in given.items():
        match name:
            case "type" if isinstance(value, str):
                kind = value.lower()
                found[name] = [kind, "null"] if given.get("nullable") is True else kind
            case "properties" if isinstance(value, dict):
                found[name] = {key: as_json_schema(one) for key, one in value.items()}
            case "nullable" | "propertyOrdering" | "property_ordering":
                pass
            case "enum" | "required" | "default" | "example":
                found[name] = value
            case "any_of":
                found["anyOf"] = as_json_schema(value)
            case _ if name in _COUNTS and isinstance(value, str) and value.isdigit():
                found[name] = int(value)
            case _:
                found[name] = as_json_schema(value)
    return found
