"""The requests of `/generate`, as clients of Hugging Face's text-generation-inference send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ridgeline.serve.http.protocol.completions import CompletionRequest
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.exact import Strict
from ridgeline.serve.http.protocol.fields import LARGEST_INT, Schema, StopString, Text

USUAL_NEW_TOKENS = 100
"""How many tokens come where none is said, as that server has it."""
NAMES = {
    "prompt": "inputs",
    "max_tokens": "max_new_tokens",
    "guided_json": "grammar",
    "guided_regex": "grammar",
    "regex": "grammar",
    "structured_outputs": "grammar",
    "truncate_prompt_tokens": "truncate",
    "model": "adapter_id",
}
"""Fields of a completion by their name here, for errors."""


class NamedSchema(Strict):
    """A schema and what it is called."""

    name: Text | None = None
    schema_: Schema = Field(alias="schema")


class SchemaGrammar(Strict):
    """JSON that matches a schema."""

    type: Literal["json"]
    value: Schema


class NamedSchemaGrammar(Strict):
    """The same in OpenAI's words."""

    type: Literal["json_schema"]
    value: NamedSchema


class RegexGrammar(Strict):
    """Text that matches a regular expression."""

    type: Literal["regex"]
    value: Text


class GenerateParameters(Strict):
    """How a text is continued; without a word about sampling, by the likeliest token."""

    max_new_tokens: int | None = Field(None, ge=1, lt=2**31)
    do_sample: bool | None = None
    temperature: float | None = Field(None, gt=0, le=2)
    top_k: int | None = Field(None, ge=1, lt=2**31)
    top_p: float | None = Field(None, gt=0, le=1)
    typical_p: float | None = Field(None, gt=0, le=1)
    """Below 1 it goes with greedy answers alone, of which it can alter no token."""
    repetition_penalty: float | None = Field(None, ge=0.01, le=10)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=0, le=LARGEST_INT)
    stop: list[StopString] | None = Field(None, max_length=256)
    stop_sequences: list[StopString] | None = Field(None, max_length=256)
    """The older name of the same."""
    best_of: int | None = Field(None, ge=1, le=128)
    return_full_text: bool | None = None
    truncate: int | None = Field(None, ge=1, lt=2**31)
    details: bool | None = None
    decoder_input_details: bool | None = None
    """Whether the prompt's tokens and their log-probabilities are told, too."""
    grammar: (
        Annotated[SchemaGrammar | NamedSchemaGrammar | RegexGrammar, Field(discriminator="type")]
        | None
    ) = None
    adapter_id: Annotated[str, Field(max_length=512)] | None = None
    watermark: Literal[False] | None = None
    top_n_tokens: None = None

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn."""
        given = (self.temperature, self.top_k, self.top_p, self.typical_p)
        if self.do_sample is not None:
            return self.do_sample
        return any(value not in (None, 1.0) for value in given)


class GenerateRequest(Strict):
    """A text to be continued."""

    inputs: Text
    parameters: GenerateParameters | None = None
    stream: bool | None = None
    """Whether the plain address streams; `/generate` and `/generate_stream` say it themselves."""

    @property
    def asked(self) -> GenerateParameters:
        """The parameters, given or not."""
        return self.parameters or GenerateParameters.model_validate({})

    def completion(self, *, stream: bool) -> CompletionRequest:
        """The same as a request of `/v1/completions`. Raises ApiError."""
        asked = self.asked
        if asked.typical_p not in (None, 1) and asked.samples:
            text = "typical_p: tokens are not drawn that way here; send do_sample: false"
            raise refused(text, "typical_p")
        if stream and asked.decoder_input_details:
            text = "decoder_input_details needs a reply that is not streamed"
            raise refused(text, "decoder_input_details")
        same = {"top_k", "top_p", "repetition_penalty", "frequency_penalty", "seed", "best_of"}
        fields = asked.model_dump(include=same, exclude_none=True)
        more: dict[str, Any] = {
            "prompt": self.inputs,
            "model": asked.adapter_id,
            "max_tokens": asked.max_new_tokens or USUAL_NEW_TOKENS,
            "temperature": asked.temperature if asked.samples else 0.0,
            "stop": [*(asked.stop or []), *(asked.stop_sequences or [])] or None,
            "include_stop_str_in_output": True,
            "truncate_prompt_tokens": asked.truncate,
            "prompt_logprobs": 0 if asked.decoder_input_details else None,
            "logprobs": 0,
            "return_token_ids": True,
            "stream": stream,
        }
        match asked.grammar:
            case RegexGrammar(value=pattern):
                more["guided_regex"] = pattern
            case SchemaGrammar(value=schema):
                more["guided_json"] = schema
            case NamedSchemaGrammar(value=named):
                more["guided_json"] = named.schema_
        fields |= {name: value for name, value in more.items() if value is not None}
        return CompletionRequest.model_validate(fields)
