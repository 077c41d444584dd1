"""The requests of `/generate` in SGLang's words: texts or token ids, and `sampling_params`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ridgeline.serve.http.protocol.completions import MOST_PROMPTS, CompletionRequest
from ridgeline.serve.http.protocol.exact import Strict, few
from ridgeline.serve.http.protocol.fields import (
    LARGEST_INT,
    MOST_BIASES,
    MOST_LOGPROBS,
    Bias,
    Schema,
    StopString,
    Text,
    TokenId,
    Tokens,
)

USUAL_NEW_TOKENS = 128
"""How many tokens come where none is said, as that server has it."""
_OTHER_NAMES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "include_stop_str_in_output": "no_stop_trim",
}
"""Fields of a completion by their name among the parameters here, where it is another one."""
NAMES = {
    **_OTHER_NAMES,
    "prompt": "text",
    "model": "lora_path",
    "logprobs": "top_logprobs_num",
    "prompt_logprobs": "logprob_start_len",
}
"""The same for errors, with what stands beside the parameters."""


class SGLangSampling(Strict):
    """How a text is continued."""

    max_new_tokens: int | None = Field(None, ge=0, lt=2**31)
    """At 0 only the prompt is computed, for its log-probabilities or for the prefix cache."""
    min_new_tokens: int | None = Field(None, ge=0, lt=2**31)
    n: int | None = Field(None, ge=1, le=128)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10)
    logit_bias: Annotated[dict[str, Bias], few(MOST_BIASES)] | None = None
    sampling_seed: int | None = Field(None, ge=-LARGEST_INT, le=LARGEST_INT)
    stop: StopString | list[StopString] | None = Field(None, max_length=256)
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True)] | None = Field(
        None, max_length=1024
    )
    no_stop_trim: bool | None = None
    """Whether the string that ended a text stands in it."""
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    json_schema: Schema | None = None
    regex: Text | None = None
    ebnf: Text | None = None

    def completion_fields(self) -> dict[str, Any]:
        """The same as fields of a completion."""
        given = self.model_dump(exclude_none=True)
        for name, here in _OTHER_NAMES.items():
            if here in given:
                given[name] = given.pop(here)
        given.setdefault("max_tokens", USUAL_NEW_TOKENS)
        return given


class SGLangRequest(Strict):
    """One or several texts to be continued."""

    hints: ClassVar[frozenset[str]] = frozenset({"rid", "log_metrics"})

    text: Text | Annotated[list[Text], Field(min_length=1, max_length=MOST_PROMPTS)] | None = None
    input_ids: (
        Tokens
        | Annotated[list[Tokens], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
        | None
    ) = None
    sampling_params: SGLangSampling | None = None
    return_logprob: bool | None = None
    """Whether the tokens' log-probabilities are told."""
    logprob_start_len: int | None = Field(None, ge=-1, lt=2**31)
    """The place in the prompt from which on its tokens' are told, too; -1: none of them."""
    top_logprobs_num: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    return_text_in_logprobs: bool | None = None
    stream: bool | None = None
    model: Annotated[str, Field(max_length=512)] | None = None
    lora_path: Annotated[str, Field(max_length=512)] | None = None
    """The name of an adapter."""
    rid: Annotated[str, Field(max_length=512)] | None = None
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    log_metrics: bool | None = None
    return_hidden_states: Literal[False] | None = None
    background: Literal[False] | None = None

    @model_validator(mode="after")
    def _one_prompt(self) -> SGLangRequest:
        if (self.text is None) == (self.input_ids is None):
            raise ValueError("exactly one of text and input_ids is to be continued")
        if self.stream and self.tells_prompt:
            raise ValueError("logprob_start_len needs a reply that is not streamed")
        return self

    @property
    def asked(self) -> SGLangSampling:
        """The parameters, given or not."""
        return self.sampling_params or SGLangSampling.model_validate({})

    @property
    def tells_prompt(self) -> bool:
        """Whether log-probabilities of the prompt's tokens are asked for."""
        start = -1 if self.logprob_start_len is None else self.logprob_start_len
        return bool(self.return_logprob) and start >= 0

    @property
    def is_batch(self) -> bool:
        """Whether the reply is a list."""
        given = self.text if self.text is not None else self.input_ids
        several = isinstance(given, list) and not isinstance(given[0], int)
        return several or (self.asked.n or 1) > 1

    def completion(self) -> CompletionRequest:
        """The same as a request of `/v1/completions`."""
        fields = self.asked.completion_fields()
        num_top = self.top_logprobs_num or 0
        more: dict[str, Any] = {
            "prompt": self.text if self.text is not None else self.input_ids,
            "model": self.lora_path or self.model,
            "echo": True if fields["max_tokens"] == 0 else None,
            "logprobs": num_top if self.return_logprob else None,
            "prompt_logprobs": num_top if self.tells_prompt else None,
            "priority": self.priority,
            "stream": self.stream,
        }
        fields |= {name: value for name, value in more.items() if value is not None}
        return CompletionRequest.model_validate(fields)
