"""What requests have in common: sampling parameters, with their limits.

The first wrong element of a list is enough: pydantic would else describe each of a million.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.exact import Strict, at_most, few
from ridgeline.serve.messages import Grammar, Sampling, ThoughtBudget
from ridgeline.serve.sampling.sampler_order import INFILL, named_samplers, ordered
from ridgeline.serve.sampling.validate import not_too_cold

LARGEST_INT = 2**63 - 1
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, Field(max_length=1 << 26)]
Name = Annotated[str, Field(min_length=1, max_length=512)]
PlainName = Annotated[Name, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A name without control characters."""
Tokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
MOST_LOGPROBS = 20
LOWEST_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON does not have; OpenAI's own figure."""
MOST_BIASES = 1024
StopString = Annotated[str, Field(min_length=1, max_length=1024)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Choices = Annotated[list[Text], Field(min_length=1, max_length=1 << 16, fail_fast=True)]
Schema = dict[str, Any] | Text


BACKENDS = r"^(auto|xgrammar|guidance|outlines|lm-format-enforcer)(:[\w,-]*)?$"
"""The compilers of grammars that vLLM's clients may name, and what they say of them."""
MOST_STOPS = 256


AskedModel = Annotated[
    str, BeforeValidator(lambda given: "" if given is None else given), Field(max_length=512)
]
"""The model that a request names; without a name it is the one that is served."""
COMMON_HINTS = frozenset({
    *("spaces_between_special_tokens", "guided_decoding_backend", "request_id"),
    *("provider", "models", "route", "transforms", "project_id", "verbose"),
})  # fmt: skip
"""Words of vLLM's clients from which nothing follows here: fast tokenizers put no such spaces, one
compiler makes all grammars, and a request's id stands in a header. And those of OpenRouter's: there
is nobody to pass a request on to, and none that is too long is shortened. Whose account it is, and
what llama.cpp made of a request, is not told either."""


_LLAMA_CPPS = {"cache_prompt", "id_slot", "timings_per_token", "return_progress"}
ASKED_HINTS = (
    COMMON_HINTS | {"service_tier", "prompt_cache_key", "prompt_cache_retention"} | _LLAMA_CPPS
)
"""The hints above, OpenAI's for completions and chats alike, and llama.cpp's: cache and machine are
not a request's business here, and no progress is told."""


class StreamOptions(Strict):
    """Options of a streamed reply."""

    include_usage: bool | None = None
    """A last chunk without choices says the usage."""
    continuous_usage_stats: bool | None = None
    """Every chunk says the usage so far (vLLM's)."""
    include_obfuscation: bool | None = None
    """Random text that makes chunks as long as each other: none is written."""


class StructuredOutputs(Strict):
    """What the completion must match; exactly one of them (vLLM's names)."""

    json_: Schema | None = Field(None, alias="json")
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool | None = None

    def to_grammar(self) -> Grammar:
        """The grammar that the engine is given."""
        given = []
        if self.json_ is not None:
            given.append(schema_grammar(self.json_, "structured_outputs"))
        if self.regex is not None:
            given.append(Grammar(kind="regex", text=self.regex))
        if self.choice is not None:
            given.append(Grammar(kind="choice", text=json_text(self.choice, "choice")))
        if self.grammar is not None:
            given.append(Grammar(kind="ebnf", text=self.grammar))
        if self.json_object:
            given.append(Grammar(kind="json_object"))
        if len(given) != 1:
            raise refused(
                "structured_outputs takes exactly one of json, regex, choice, grammar, json_object",
                "structured_outputs",
            )
        return given[0]


_OTHER_GRAMMARS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "gbnf": "grammar",
}
"""What `structured_outputs` calls the fields of older vLLM, of SGLang and of llama.cpp."""


class SamplingFields(Strict):
    """OpenAI's fields with their limits, then vLLM's extras."""

    hints: ClassVar[frozenset[str]] = ASKED_HINTS
    """Fields that are taken though nothing follows from them: they cannot alter a token."""

    model: AskedModel = ""
    n: int | None = Field(None, ge=1, le=128)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    """Zero leaves the most likely token alone."""
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: Annotated[
        Annotated[dict[str, Bias], few(MOST_BIASES)] | None,
        BeforeValidator(lambda one: None if one == [] else one),
    ] = None
    seed: int | None = Field(None, ge=-LARGEST_INT, le=LARGEST_INT)
    stop: Annotated[
        StopString | list[StopString] | None,
        BeforeValidator(lambda given: at_most(given, MOST_STOPS, "stop strings")),
    ] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: Annotated[dict[str, Text], few(16)] | None = None
    """Stands in the request's log line."""
    service_tier: Annotated[str, Field(max_length=64)] | None = None
    safety_identifier: str | None = Field(None, max_length=512)
    """Stands in the request's log line."""
    prompt_cache_key: Annotated[str, Field(max_length=1024)] | None = None
    prompt_cache_retention: Annotated[str, Field(max_length=64)] | None = None
    """The prefix cache keeps what fits, for everybody, whatever these two say."""
    user: str | None = Field(None, max_length=512)
    """Stands in the request's log line."""
    cache_prompt: bool | None = None
    id_slot: int | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    verbose: bool | None = None
    answer_limit: float | None = Field(None, alias="t_max_predict_ms")
    """The time after which an answer with a complete line ends, from its first token (llama.cpp's);
    0 or less: none."""
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    """The number of most likely tokens that may come; -1 or 0: all."""
    min_p: float | None = Field(None, ge=0, le=1)
    samplers: Annotated[tuple[str, ...] | None, BeforeValidator(named_samplers)] = None
    """The samplers that are used, in their order, by llama.cpp's names; absent: ours."""
    repetition_penalty: float | None = Field(None, ge=0.01, le=10)
    min_tokens: int | None = Field(None, ge=0, lt=2**31)
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True)] | None = Field(
        None, max_length=1024
    )
    include_stop_str_in_output: bool | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(fail_fast=True, min_length=1)] | None = None
    """The only tokens that may come."""
    bad_words: Annotated[list[StopString], Field(max_length=256)] | None = None
    """Texts whose tokens may not come, at the beginning of a word or within."""
    skip_special_tokens: bool | None = None
    """Whether special tokens are left out of the text; yes if absent."""
    spaces_between_special_tokens: bool | None = None
    detokenize: Literal[True] | None = None
    return_tokens_as_token_ids: bool | None = None
    """Whether log-probabilities name tokens by their ids, as `token_id:5`."""
    prompt_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    truncate_prompt_tokens: int | None = Field(None, ge=-1, lt=2**31)
    """The prompt's last tokens that are taken; -1: as many as the context holds."""
    truncation_side: Literal["left"] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Prefixes are shared only among requests of the same salt."""
    request_id: Annotated[str, Field(max_length=512)] | None = None
    return_token_ids: bool | None = None
    """Whether the reply has the ids of prompt and completion beside the text."""
    project_id: Annotated[str, Field(max_length=512)] | None = None
    """Whose account it is, of IBM's cloud."""
    provider: Annotated[dict[str, Any], few(32)] | None = None
    models: Annotated[list[Text], Field(max_length=64)] | None = None
    route: Annotated[str, Field(max_length=64)] | None = None
    transforms: Annotated[list[Text], Field(max_length=16)] | None = None
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    use_beam_search: bool | None = None
    """The `n` best of `n` beams."""
    length_penalty: float | None = Field(None, ge=-10, le=10)
    early_stopping: Literal[False] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None
    json_schema: Schema | None = None
    regex: Text | None = None
    ebnf: Text | None = None
    """What the completion must match, in SGLang's words."""
    gbnf: Annotated[Text | None, BeforeValidator(lambda given: given or None)] = Field(
        None, alias="grammar"
    )
    """The same in llama.cpp's."""
    guided_decoding_backend: Annotated[str, Field(pattern=BACKENDS)] | None = None
    guided_whitespace_pattern: None = None
    logits_processors: Annotated[list[Any], Field(max_length=0)] | None = None
    kv_transfer_params: None = None
    vllm_xargs: None = None
    repetition_detection: None = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs needs a reply that is not streamed")
        if self.length_penalty not in (None, 1.0) and not self.use_beam_search:
            raise ValueError("length_penalty needs use_beam_search: true")
        return self

    @property
    def without_effect(self) -> list[str]:
        """The hints that were given; the reply names them in a header."""
        given = self.hints & self.model_fields_set
        infill = [f"samplers.{INFILL}"] if INFILL in (self.samplers or ()) else []
        options = self.stream_options
        stream = (
            ["stream_options.include_obfuscation"]
            if options and options.include_obfuscation
            else []
        )
        return sorted(name for name in given if getattr(self, name) is not None) + infill + stream

    @property
    def usage_in_stream(self) -> bool:
        """Whether the stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def with_defaults(self, defaults: Mapping[str, float | int]) -> dict[str, float | int]:
        """What a model's makers say about the fields that the request leaves out.

        Nothing for a beam search, which takes no such parameters.
        """
        if self.use_beam_search:
            return {}
        return {name: value for name, value in defaults.items() if getattr(self, name) is None}

    def grammar(self) -> Grammar | None:
        """The grammar of `structured_outputs`, of vLLM's older names, or of SGLang's."""
        given = [
            (name, kind, value)
            for name, kind in _OTHER_GRAMMARS.items()
            if (value := getattr(self, name)) is not None
        ]
        wanted = self.structured_outputs
        if not given:
            return None if wanted is None else wanted.to_grammar()
        if wanted is not None or len(given) > 1:
            names = [type(self).model_fields[name].alias or name for name, _, _ in given]
            names += [] if wanted is None else ["structured_outputs"]
            raise refused(f"{' and '.join(names)} cannot go together", names[0])
        return StructuredOutputs.model_validate(
            {kind: value for _, kind, value in given}
        ).to_grammar()

    def sampling(
        self,
        *,
        max_tokens: int,
        logprobs: int | None,
        grammar: Grammar | None,
        vocab: int,
        prompt_logprobs: int | None = None,
        stops: tuple[str, ...] = (),
        keeps_special: bool = False,
        forbidden: tuple[tuple[int, ...], ...] = (),
        stop_ids: tuple[int, ...] = (),
        thoughts: ThoughtBudget | None = None,
    ) -> Sampling:
        """The parameters for the engine; what is absent has OpenAI's default.

        Args:
            max_tokens: As many as fit.
            logprobs: How many beside each token; None: none are asked for.
            grammar: What the completion must match.
            vocab: The size of the model's vocabulary.
            prompt_logprobs: The same as `logprobs`, for the prompt's tokens.
            stops: Strings that end this kind of completion, beside those that are asked for.
            keeps_special: Whether special tokens stand in the text whatever is asked for.
            forbidden: The tokens of `bad_words`.
            stop_ids: Tokens that end it, beside those that are asked for.
            thoughts: How long it may think.
        """
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if not self.use_beam_search:  # which has no stop strings
            stop = list(dict.fromkeys((*stop, *stops)))
        sampling = Sampling(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens or 0,
            temperature=1.0 if self.temperature is None else not_too_cold(self.temperature),
            top_k=1 if self.top_p == 0 else max(0, self.top_k or 0),
            top_p=self.top_p or 1.0,
            min_p=self.min_p or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=_biases(self.logit_bias or {}, vocab),
            allowed_ids=_allowed(self.allowed_token_ids or [], vocab),
            forbidden=forbidden,
            seed=self.seed,
            stop=tuple(stop),
            stop_ids=(*(self.stop_token_ids or ()), *stop_ids),
            ignore_eos=bool(self.ignore_eos),
            keep_stop=bool(self.include_stop_str_in_output),
            keep_special=keeps_special or self.skip_special_tokens is False,
            logprobs=logprobs,
            prompt_logprobs=_most(prompt_logprobs, self.prompt_logprobs),
            beams=(self.n or 1) if self.use_beam_search else 0,
            length_penalty=1.0 if self.length_penalty is None else self.length_penalty,
            grammar=grammar,
            thoughts=thoughts,
            line_seconds=max(self.answer_limit or 0.0, 0.0) / 1000,
        )
        try:
            return sampling if self.samplers is None else ordered(sampling, self.samplers)
        except ValueError as error:
            raise refused(f"samplers: {error}", "samplers") from None


def _most(*given: int | None) -> int | None:
    return max((one for one in given if one is not None), default=None)


def _allowed(given: list[int], vocab: int) -> tuple[int, ...]:
    worst = max(given, default=0)
    if worst >= vocab:
        raise refused(f"allowed_token_ids: {worst} is not below {vocab}", "allowed_token_ids")
    return tuple(dict.fromkeys(given))


def _biases(given: dict[str, float], vocab: int) -> dict[int, float]:
    found = {}
    for key, bias in given.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < vocab):
            text = f"logit_bias: {key[:40]!r} is no token id below {vocab}"
            raise refused(text, "logit_bias")
        found[int(key)] = bias
    return found


def schema_grammar(schema: dict[str, Any] | str, param: str) -> Grammar:
    """A JSON schema for the engine. Raises ApiError where it is nested beyond reason."""
    return Grammar(
        kind="json_schema", text=schema if isinstance(schema, str) else json_text(schema, param)
    )


def json_text(value: Any, param: str) -> str:
    """A value as JSON; by json and not msgspec, for clients' integers may have any size."""
    try:
        return json.dumps(value)
    except RecursionError:
        raise refused(f"{param} is nested too deeply", param) from None
