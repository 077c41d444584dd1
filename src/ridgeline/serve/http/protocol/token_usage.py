"""How many tokens a reply says that it took."""

from __future__ import annotations

import msgspec


class PromptDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the prompt's tokens."""

    cached_tokens: int
    """Found in the prefix cache."""


class CompletionDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the completions' tokens."""

    reasoning_tokens: int
    """The tokens of thoughts, tags included."""


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Summed over prompts and completions; a prompt with several completions counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | msgspec.UnsetType = msgspec.UNSET
    """They are told of models that mark their thoughts."""
