"""The requests of llama.cpp's own endpoints, `/completion`, `/infill` and `/apply-template`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from ridgeline.serve.http.protocol.chat import Variables
from ridgeline.serve.http.protocol.chat_messages import Message
from ridgeline.serve.http.protocol.completions import MOST_PROMPTS, CompletionRequest
from ridgeline.serve.http.protocol.exact import Strict, few
from ridgeline.serve.http.protocol.fields import (
    LARGEST_INT,
    MOST_BIASES,
    MOST_LOGPROBS,
    AskedModel,
    Bias,
    Schema,
    StopString,
    Text,
    Tokens,
)
from ridgeline.serve.http.protocol.tools import MOST_TOOLS, AnyTool
from ridgeline.serve.sampling.sampler_order import LLAMA_CPP

NAMES = {
    "max_tokens": "n_predict",
    "repetition_penalty": "repeat_penalty",
    "logprobs": "n_probs",
    "n": "n_cmpl",
    "guided_grammar": "grammar",
    "suffix": "input_suffix",
}
"""Fields of a completion by their name here, for errors."""


def _biases(given: Any) -> Any:
    """Biases as a mapping, which llama.cpp's clients write as pairs; `false` forbids a token."""
    if not isinstance(given, list):
        return given
    pairs = [one for one in given if isinstance(one, list) and len(one) == 2]
    if len(pairs) < len(given):
        return given
    return {str(token): -100.0 if bias is False else bias for token, bias in pairs}


class LlamaNumbers(Strict):
    """How a token is drawn, in llama.cpp's words, which are Ollama's, too."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    top_p: float | None = Field(None, ge=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    repeat_penalty: float | None = Field(None, ge=0.01, le=10)
    repeat_last_n: int | None = Field(None, ge=-1, lt=2**31)
    """How far the penalties look back; here they see all of the text."""
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)


class LlamaSampling(LlamaNumbers):
    """How a text is continued."""

    hints: ClassVar[frozenset[str]] = frozenset({
        *("cache_prompt", "id_slot", "n_keep", "n_cache_reuse", "repeat_last_n"),
        *("prompt_limit", "timings_per_token"),
    })  # fmt: skip
    """What machine and cache do is decided here; penalties see all of the text, and prompts are
    computed to their end, as llama.cpp does."""

    n_predict: int | None = Field(None, ge=-2, lt=2**31)
    """The most new tokens; below 0: as many as the context leaves."""
    n_cmpl: int | None = Field(None, ge=1, le=128)
    seed: int | None = Field(None, ge=-1, le=LARGEST_INT)
    """The seed of drawing; -1 stands for any."""
    stop: list[StopString] | None = Field(None, max_length=256)
    ignore_eos: bool | None = None
    logit_bias: Annotated[
        Annotated[dict[str, Bias], few(MOST_BIASES)] | None, BeforeValidator(_biases)
    ] = None
    grammar: Text | None = None
    json_schema: Schema | None = None
    n_probs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    stream: bool | None = None
    return_tokens: bool | None = None
    cache_prompt: bool | None = None
    id_slot: int | None = None
    n_keep: int | None = None
    n_cache_reuse: int | None = None
    samplers: list[str] | Text | None = Field(None, max_length=64)
    prompt_limit: float | None = Field(None, alias="t_max_prompt_ms")
    """The time in which a prompt is to be computed."""
    answer_limit: float | None = Field(None, alias="t_max_predict_ms")
    """The time after which an answer with a complete line ends; 0 or less: none."""
    timings_per_token: bool | None = None
    return_progress: Literal[False] | None = None

    @property
    def without_effect(self) -> list[str]:
        """What was given and has no effect."""
        given = {name for name in self.hints if getattr(self, name) is not None}
        return sorted(type(self).model_fields[name].alias or name for name in given)

    def fields(self) -> dict[str, Any]:
        """The same as fields of a completion."""
        same = {"temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty",
                "stop", "ignore_eos", "logit_bias", "json_schema", "stream"}  # fmt: skip
        found = self.model_dump(include=same, exclude_none=True)
        more: dict[str, Any] = {
            "n": self.n_cmpl,
            "guided_grammar": self.grammar or None,
            "repetition_penalty": None if self.repeat_last_n == 0 else self.repeat_penalty,
            "seed": None if self.seed == -1 else self.seed,
            "logprobs": self.n_probs or None,
            "t_max_predict_ms": self.answer_limit,
            "max_tokens": self.n_predict if self.n_predict and self.n_predict > 0 else None,
        }
        told = {name: value for name, value in more.items() if value is not None}
        order = LLAMA_CPP if self.samplers is None else self.samplers
        return {**found, **told, "samplers": order, "return_token_ids": True}


class LlamaCompletionRequest(LlamaSampling):
    """A text or several, to be continued."""

    model: AskedModel = ""
    prompt: Text | Tokens | Annotated[list[Text], Field(min_length=1, max_length=MOST_PROMPTS)]

    def completion(self) -> CompletionRequest:
        """The same as a request of `/v1/completions`."""
        alone = {"echo": True, "max_tokens": 0} if self.n_predict == 0 else {}
        asked = {**self.fields(), **alone, "prompt": self.prompt, "model": self.model}
        return CompletionRequest.model_validate(asked)


class Snippet(Strict):
    """A piece of another file."""

    filename: Text | None = None
    text: Text
    time: float | None = None


class LlamaInfillRequest(LlamaSampling):
    """What stands before and behind a cursor; what stands between is asked for."""

    input_prefix: Text
    input_suffix: Text
    input_extra: list[Snippet] | None = Field(None, max_length=1024)
    """What the editor thinks is related; it stands above the text before the cursor."""
    prompt: Text | None = None
    """What stands before the cursor in its own line."""

    def completion(self) -> CompletionRequest:
        """The same as a request of `/v1/completions`."""
        above = "".join(f"{one.text}\n\n" for one in self.input_extra or [])
        before = above + self.input_prefix + (self.prompt or "")
        # An editor at the end of its file has an empty suffix, which is still a place to fill.
        return CompletionRequest.model_validate(
            {**self.fields(), "prompt": before, "suffix": self.input_suffix or "\n"}
        )


class TemplateRequest(Strict):
    """A conversation whose text is asked for."""

    messages: list[Message] = Field(min_length=1, max_length=4096)
    tools: list[AnyTool] | None = Field(None, max_length=MOST_TOOLS)
    chat_template_kwargs: Variables | None = None
