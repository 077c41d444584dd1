"""How many tokens a request took."""

from __future__ import annotations

import msgspec


class PromptDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Of the prompt's tokens."""

    cached_tokens: int
    """Found in the prefix cache."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Summed over prompts and answers; a prompt with several answers counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class EmbeddingUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Of embeddings."""

    prompt_tokens: int
    total_tokens: int
