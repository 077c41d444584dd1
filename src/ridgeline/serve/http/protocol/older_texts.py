"""The shapes of older endpoints that continue a text, `/v1/complete` and `/v1/generate`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ridgeline.serve.http.protocol.completions import CompletionRequest
from ridgeline.serve.http.protocol.exact import Strict
from ridgeline.serve.http.protocol.fields import AskedModel, StopString, Text
from ridgeline.serve.http.protocol.messages import RequestMetadata, unless_off

HUMAN = "\n\nHuman:"
"""Where Anthropic's older models end: the next turn of the prompt's own form."""
USUAL_TOKENS = 20
"""The tokens that Cohere's older endpoint wrote where no number was said."""
NAMES = {
    "max_tokens": "max_tokens_to_sample",
    "stop": "stop_sequences",
    "n": "num_generations",
    "top_k": "k",
    "top_p": "p",
}
"""Fields of a completion by their names here, for errors."""


class CompleteRequest(Strict):
    """A text to be continued, in the words that Anthropic had before `/v1/messages`."""

    model: AskedModel = ""
    prompt: Text
    max_tokens_to_sample: int = Field(ge=1, lt=2**31)
    stop_sequences: Annotated[list[StopString], Field(max_length=16)] | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: Annotated[float | None, Field(ge=0, le=1), BeforeValidator(unless_off)] = None
    top_k: Annotated[int | None, Field(ge=0, lt=2**31), BeforeValidator(unless_off)] = None
    metadata: RequestMetadata | None = None
    stream: bool | None = None

    @property
    def completion(self) -> CompletionRequest:
        """The same as a request of `/v1/completions`; the prompt stands as it came."""
        return _completion(
            {
                "model": self.model,
                "prompt": self.prompt,
                "max_tokens": self.max_tokens_to_sample,
                "stop": list(dict.fromkeys((*(self.stop_sequences or ()), HUMAN))),
                "temperature": self.temperature,
                "top_p": self.top_p,
                "top_k": self.top_k,
                "user": None if self.metadata is None else self.metadata.user_id,
                "stream": self.stream,
            }
        )


class OlderTextRequest(Strict):
    """A text to be continued, in the words that Cohere had before chats."""

    idle = frozenset({"raw_prompting"})

    model: AskedModel = ""
    prompt: Text
    num_generations: int | None = Field(None, ge=1, le=5)
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    temperature: float | None = Field(None, ge=0, le=2)
    k: int | None = Field(None, ge=0, lt=2**31)
    p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=0, lt=2**63)
    frequency_penalty: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=0, le=1)
    stop_sequences: Annotated[list[StopString], Field(max_length=16)] | None = None
    """These stay in the text; those of the next field do not."""
    end_sequences: Annotated[list[StopString], Field(max_length=16)] | None = None
    return_likelihoods: Literal["NONE", "GENERATION"] | None = None
    truncate: Literal["NONE", "START"] | None = None
    """Whether a prompt that is too long loses its beginning; it is refused where NONE is said."""
    preset: None = None
    stream: bool | None = None

    @property
    def completion(self) -> CompletionRequest:
        """The same as a request of `/v1/completions`."""
        return _completion(
            {
                "model": self.model,
                "prompt": self.prompt,
                "n": self.num_generations,
                "max_tokens": self.max_tokens or USUAL_TOKENS,
                "temperature": self.temperature,
                "top_k": self.k,
                "top_p": self.p,
                "seed": self.seed,
                "frequency_penalty": self.frequency_penalty,
                "presence_penalty": self.presence_penalty,
                "stop": self.stop_sequences or self.end_sequences,
                "include_stop_str_in_output": True if self.stop_sequences else None,
                "truncate_prompt_tokens": -1 if self.truncate == "START" else None,
                "logprobs": 0 if self.return_likelihoods == "GENERATION" else None,
                "stream": self.stream,
            }
        )


def _completion(fields: dict[str, Any]) -> CompletionRequest:
    return CompletionRequest.model_validate(
        {name: value for name, value in fields.items() if value is not None}
    )
