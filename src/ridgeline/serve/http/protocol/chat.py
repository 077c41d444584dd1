"""The shapes of `/v1/chat/completions`; its messages are in `chat_messages.py`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    model_validator,
)

from ridgeline.serve.http.protocol.chat_messages import Content, Message
from ridgeline.serve.http.protocol.cloud_words import SEARCHES, as_vllms
from ridgeline.serve.http.protocol.exact import Strict, few
from ridgeline.serve.http.protocol.fields import ASKED_HINTS, MOST_LOGPROBS, SamplingFields
from ridgeline.serve.http.protocol.other_words import (
    Effort,
    as_openais,
    names_allowed,
)
from ridgeline.serve.http.protocol.response_format import ResponseFormat
from ridgeline.serve.http.protocol.token_usage import TokenUsage
from ridgeline.serve.http.protocol.tools import (
    MOST_TOOLS,
    AnyTool,
    FunctionCall,
    NamedChoice,
    ToolCall,
)

Variables = Annotated[dict[str, Any], few(64)]
"""Variables of a chat template."""


class PredictedOutput(Strict):
    """What the client expects to be answered: it may make an answer faster, not another one."""

    type: Literal["content"]
    content: Content


MostTokens = Annotated[
    Annotated[int, Field(ge=1, lt=2**31)] | None,
    BeforeValidator(lambda given: None if given == -1 else given),
]
"""A bound of an answer; -1, by which clients of llama.cpp and LM Studio say none, is one."""


class ChatRequest(SamplingFields):
    """A conversation to be answered."""

    hints: ClassVar[frozenset[str]] = ASKED_HINTS | {
        "store", "prediction", "prompt_cache_options", "verbosity", "audio",
    }  # fmt: skip
    idle = SEARCHES | {"disable_tool_validation", "keep_alive"}

    messages: list[Message] = Field(min_length=1, max_length=4096)
    max_tokens: MostTokens = None
    """The older name of the next."""
    max_completion_tokens: MostTokens = None
    """The most new tokens; as many as the context leaves, if absent."""
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    response_format: ResponseFormat | None = None
    tools: list[AnyTool] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    """Nothing is stored here."""
    modalities: list[Literal["text"]] | None = None
    add_special_tokens: bool | None = None
    """Whether the tokenizer's first token goes before the template's text."""
    echo: Literal[False] | None = None
    chat_template: None = None
    """A template is a program, so it is the operator's to give, with --chat-template."""
    mm_processor_kwargs: None = None
    thinking_token_budget: int | None = Field(None, ge=0, lt=2**31)
    """The most tokens of thoughts; then the closing mark comes."""
    add_generation_prompt: bool | None = None
    """Whether the template opens the assistant's turn; yes if absent."""
    continue_final_message: bool | None = None
    """The last message is the beginning of the completion."""
    documents: Annotated[list[dict[str, Any]], Field(max_length=1024)] | None = None
    """What the template shows as sources; refused where it shows none."""
    chat_template_kwargs: Variables | None = None
    """Variables of the template, such as Qwen's `enable_thinking`."""
    audio: Annotated[dict[str, Any], few(16)] | None = None
    """How a voice would sound, of an answer that is text whatever `modalities` says."""
    function_call: Literal["none"] | None = None
    """The older name of `tool_choice`, as far as it asks for nothing."""
    functions: None = None
    moderation: None = None
    prediction: PredictedOutput | None = None
    prompt_cache_options: Annotated[dict[str, Any], few(16)] | None = None
    """The prefix cache keeps what fits, for everybody, whatever this and its like say."""
    reasoning_effort: Effort | None = None
    """How much the model thinks first; for templates that know of it."""
    include_reasoning: bool | None = None
    """Whether the reply has the thoughts; yes if absent."""
    verbosity: Literal["low", "medium", "high"] | None = None

    _only_allowed: bool = PrivateAttr(default=False)
    _functions: bool = PrivateAttr(default=False)

    @model_validator(mode="wrap")
    @classmethod
    def _as_chat(cls, given: Any, read: ModelWrapValidatorHandler[ChatRequest]) -> ChatRequest:
        body = read(as_openais(as_vllms(given)))
        if isinstance(given, dict):
            body._only_allowed = names_allowed(given)
            body._functions = bool(given.get("functions"))
        return body

    @property
    def with_functions(self) -> bool:
        """Whether the answer has a call in the words before there were tools."""
        return self._functions

    @property
    def shown_tools(self) -> list[AnyTool]:
        """The tools that the model is told of."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def only_allowed(self) -> bool:
        """Whether no tool but those that the model is told of may be called."""
        return self._only_allowed

    @model_validator(mode="after")
    def _fields_go_together(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise ValueError("tool_choice needs tools")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise ValueError("max_tokens is the older name of max_completion_tokens: they differ")
        return self


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """The log-probability of one token."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """The log-probability of the chosen token, with the most likely ones beside it."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenLogprob]


class ChoiceLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities with one entry per token."""

    content: list[ChosenLogprob]
    refusal: None = None


class CompletionMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What the model says; `tool_calls` and thoughts only where there are some."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    """The newer name of the same."""
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    function_call: FunctionCall | msgspec.UnsetType = msgspec.UNSET
    """The only call, in the words before there were tools."""


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One completion of a chat."""

    index: int
    message: CompletionMessage
    token_ids: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole reply to a chat."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage
    prompt_token_ids: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[Any] | msgspec.UnsetType = msgspec.UNSET
    """For each place of the prompt, token id → log-probability; None at the first."""
    object: str = "chat.completion"
    system_fingerprint: str | None = None


class ChunkDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a chunk adds to a completion."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to one completion."""

    index: int
    delta: ChunkDelta
    token_ids: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: TokenUsage | msgspec.UnsetType | None = msgspec.UNSET
    prompt_token_ids: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """In the first chunk of each completion."""
    object: str = "chat.completion.chunk"
    system_fingerprint: str | None = None
