"""The shapes of `/v1/completions`, text or ids in and text out, and of `/v1/fim/completions`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import BeforeValidator, Field, model_validator

from ridgeline.serve.http.protocol.cloud_words import as_completion
from ridgeline.serve.http.protocol.fields import MOST_LOGPROBS, SamplingFields, Text, Tokens
from ridgeline.serve.http.protocol.other_words import as_chat
from ridgeline.serve.http.protocol.token_usage import TokenUsage


class FillRequest(SamplingFields):
    """Two texts; what is asked for stands between them."""

    prompt: Text
    suffix: Text | None = None
    """What stands behind; without it, the prompt is continued."""
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    """The newer name of the same."""

    @model_validator(mode="before")
    @classmethod
    def _in_openais_words(cls, given: Any) -> Any:
        return as_chat(given)

    @model_validator(mode="after")
    def _one_limit(self) -> FillRequest:
        if len({self.max_tokens, self.max_completion_tokens} - {None}) > 1:
            raise ValueError("max_tokens is the older name of max_completion_tokens: they differ")
        return self

    @property
    def completion(self) -> CompletionRequest:
        """The same as a request of `/v1/completions`."""
        fields = self.model_dump(exclude_none=True, by_alias=True)
        longest = fields.pop("max_completion_tokens", None)
        if longest is not None:
            fields["max_tokens"] = longest
        return CompletionRequest.model_validate(fields)


MOST_PROMPTS = 1024


class CompletionRequest(SamplingFields):
    """A text, token ids, or a list of either, each to be continued."""

    prompt: (
        Text
        | Tokens
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
        | Annotated[list[Tokens], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
    )
    max_tokens: int | None = Field(None, ge=0, lt=2**31)
    """16 if absent, as OpenAI's; 0 only with `echo`."""
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    best_of: int | None = Field(None, ge=1, le=128)
    """So many are drawn for each prompt, of which the `n` likeliest by token come back."""
    add_special_tokens: bool | None = None
    """Whether texts get the tokenizer's first token; yes if absent."""
    suffix: Annotated[Text | None, BeforeValidator(lambda given: given or None)] = None
    """What stands behind the gap that is asked for, where the model has tokens for it."""

    @model_validator(mode="before")
    @classmethod
    def _by_vllms_names(cls, given: Any) -> Any:
        return as_completion(given)

    @property
    def num_drawn(self) -> int:
        """Completions that are drawn for each prompt."""
        return self.best_of or self.n or 1

    @property
    def is_ranked(self) -> bool:
        """Whether more are drawn than come back."""
        return self.num_drawn > (self.n or 1)


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities with one entry per token; the prompt's first token has none."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, or what a chunk adds to it; what is unset was not asked for."""

    index: int
    text: str
    token_ids: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """In a stream, in the completion's first chunk."""
    prompt_logprobs: list[Any] | msgspec.UnsetType = msgspec.UNSET
    """For each place of the prompt, token id → log-probability; None at the first."""
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole completion, or one chunk of a stream: both have this shape."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: TokenUsage | None = None
    object: str = "text_completion"
    system_fingerprint: str | None = None


def several(given: str | list[int] | list[str] | list[list[int]]) -> list[str | list[int]]:
    """The inputs of a request, one or many, as a list.

    >>> several([1, 2]), several(["a", "b"])
    ([[1, 2]], ['a', 'b'])
    """
    if isinstance(given, str) or isinstance(given[0], int):
        return [given]  # type: ignore[list-item]
    return given  # type: ignore[return-value]
