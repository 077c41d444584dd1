"""The request of `/v1/fim/completions`, as Mistral's clients and editors write it."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from ridgeline.serve.http.protocol.completions import CompletionRequest
from ridgeline.serve.http.protocol.fields import SamplingFields, Text
from ridgeline.serve.http.protocol.other_words import as_chat


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
