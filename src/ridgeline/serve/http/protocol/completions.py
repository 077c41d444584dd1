"""The shapes of `/v1/completions` and `/v1/embeddings`: text or ids in, text or vectors out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from ridgeline.serve.http.protocol.fields import (
    MOST_LOGPROBS,
    EmbeddingUsage,
    Name,
    SamplingFields,
    Strict,
    Text,
    Tokens,
    TokenUsage,
)

MOST_PROMPTS = 1024
Embeddable = Annotated[Text, Field(min_length=1)]


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
    """Only as many as `n`."""
    add_special_tokens: bool | None = None
    """Whether texts get the tokenizer's first token; yes if absent."""
    suffix: None = None


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


class EmbeddingRequest(Strict):
    """Texts or token ids, each to become one vector."""

    model: Name
    input: (
        Embeddable
        | Tokens
        | Annotated[list[Embeddable], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
        | Annotated[list[Tokens], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = Field(None, max_length=512)
    dimensions: int | None = Field(None, ge=1, lt=2**31)
    """So many first numbers of the vector, normalised again (Matryoshka models)."""
    truncate_prompt_tokens: int | None = Field(None, ge=-1, lt=2**31)
    """The last tokens of each input that are taken; -1: as many as the context holds."""


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of one input: numbers, or float32 (little endian) in base64."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors in the order of the inputs."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: str = "list"
