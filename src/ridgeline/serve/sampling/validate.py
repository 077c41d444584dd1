"""What a request may ask for; all else is refused with the parameter's name, never ignored."""

from __future__ import annotations

import math

from ridgeline.batching.policies import Limits
from ridgeline.errors import InputError
from ridgeline.serve.messages import Sampling, Submit

MOST_COMPLETIONS = 128
MOST_BEAMS = 32
MOST_STOPS = 32
"""The API takes half as many; a chat template may have its own."""
LONGEST_STOP = 256
MOST_IDS = 1024
"""The most entries of `logit_bias`, of `stop_ids`, and of `forbidden`."""
LONGEST_GRAMMAR = 64 * 1024
MOST_LOGPROBS = 20
"""OpenAI's limit of `top_logprobs`."""
LEAST_PENALTY = 0.01
"""Below it, logits over the penalty leave float32 sooner or later."""
COLDEST = 1e-5
"""Below it, logits over the temperature leave float32."""
SEEDS = 2**63
"""Seeds lie in [-2⁶³, 2⁶³)."""


class RequestError(InputError):
    """A request that cannot be served as it is; becomes `Refused` with status 400."""

    def __init__(self, message: str, parameter: str) -> None:
        super().__init__(message)
        self.parameter = parameter


class UnknownAdapter(RequestError):
    """A request that names an adapter which is not loaded; becomes `Refused` with status 404."""


def validate(submit: Submit, limits: Limits, *, vocab: int, has_text: bool = True) -> None:
    """Raise `RequestError` for the first thing that cannot be done.

    Args:
        submit: As it came.
        limits: Of the scheduler.
        vocab: Tokens that the model knows.
        has_text: Whether there is a tokenizer; without one there are no strings.
    """
    _prompt(submit, limits, vocab)
    _ranges(submit.sampling)
    _ids(submit.sampling, vocab)
    _stops(submit.sampling, has_text=has_text)
    _completions(submit)
    _grammar(submit.sampling, has_text=has_text)


def _check(parameter: str, *, holds: bool, but: str) -> None:
    if not holds:
        raise RequestError(f"{parameter} {but}", parameter)


def _within(sampling: Sampling, parameter: str, low: float, high: float, but: str) -> None:
    value = getattr(sampling, parameter)
    if value is not None and not low <= value <= high:
        raise RequestError(f"{parameter} must be {but}, not {value}", parameter)


def _prompt(submit: Submit, limits: Limits, vocab: int) -> None:
    prompt, new = submit.prompt, submit.sampling.max_tokens
    _check("prompt", holds=bool(prompt), but="has no tokens; give at least one")
    if max(prompt) >= vocab or min(prompt) < 0:
        wrong = next(token for token in prompt if not 0 <= token < vocab)
        raise RequestError(f"prompt has token {wrong}; this model knows 0 to {vocab - 1}", "prompt")
    if new < 1:
        raise RequestError(f"max_tokens must be at least 1, not {new}", "max_tokens")
    longest = limits.max_length
    if len(prompt) >= longest:
        raise RequestError(
            f"prompt has {len(prompt)} tokens; with one new token at most {longest} fit", "prompt"
        )
    if len(prompt) + new > longest:
        raise RequestError(
            f"max_tokens is {new} and the prompt has {len(prompt)} tokens: together more than the "
            f"{longest} that fit; at most {longest - len(prompt)} here",
            "max_tokens",
        )


def not_too_cold(temperature: float) -> float:
    """A temperature, or 0 where it leaves nothing but the likeliest token.

    Clients that leave out zeros send the smallest number for one (Go's).
    """
    return 0.0 if temperature < COLDEST else temperature


def _ranges(sampling: Sampling) -> None:
    infinite = math.inf
    _within(sampling, "min_tokens", 0, infinite, "0 or more")
    if sampling.min_tokens > sampling.max_tokens:
        raise RequestError(
            f"min_tokens is {sampling.min_tokens}, above max_tokens, {sampling.max_tokens}",
            "min_tokens",
        )
    _within(sampling, "temperature", 0.0, 100.0, "between 0 (greedy) and 100")
    if 0.0 < sampling.temperature < COLDEST:
        raise RequestError(
            f"temperature {sampling.temperature} is below {COLDEST}; give 0 for greedy",
            "temperature",
        )
    _within(sampling, "top_k", 0, infinite, "0 (all) or more")
    _check("top_p", holds=0.0 < sampling.top_p <= 1.0, but=f"{sampling.top_p} is not in (0, 1]")
    _within(sampling, "min_p", 0.0, 1.0, "between 0 and 1")
    _within(
        sampling, "repetition_penalty", LEAST_PENALTY, 100.0, f"between {LEAST_PENALTY} and 100"
    )
    for parameter in ("presence_penalty", "frequency_penalty"):
        _within(sampling, parameter, -2.0, 2.0, "between -2 and 2")
    _within(sampling, "length_penalty", -10.0, 10.0, "between -10 and 10")
    _within(sampling, "seed", -SEEDS, SEEDS - 1, "a 64-bit integer")
    for parameter in ("logprobs", "prompt_logprobs"):
        _within(sampling, parameter, 0, MOST_LOGPROBS, f"between 0 and {MOST_LOGPROBS}")


def _ids(sampling: Sampling, vocab: int) -> None:
    for parameter in ("logit_bias", "stop_ids", "forbidden"):
        count = len(getattr(sampling, parameter))
        _check(parameter, holds=count <= MOST_IDS, but=f"has more than {MOST_IDS} tokens")
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < vocab:
            raise RequestError(
                f"logit_bias has token {token}; this model knows 0 to {vocab - 1}", "logit_bias"
            )
        if not -100.0 <= bias <= 100.0:
            raise RequestError(
                f"logit_bias of token {token} must be between -100 and 100, not {bias}",
                "logit_bias",
            )
    _known("stop_ids", sampling.stop_ids, vocab)
    _known("allowed_ids", sampling.allowed_ids, vocab)
    for sequence in sampling.forbidden:
        _check("forbidden", holds=bool(sequence), but="has a sequence without tokens")
        _known("forbidden", sequence, vocab)


def _known(parameter: str, tokens: tuple[int, ...], vocab: int) -> None:
    for token in tokens:
        if not 0 <= token < vocab:
            raise RequestError(
                f"{parameter} has token {token}; this model knows 0 to {vocab - 1}", parameter
            )


def _stops(sampling: Sampling, *, has_text: bool) -> None:
    stops = sampling.stop
    if not stops:
        return
    _check("stop", holds=has_text, but="needs a tokenizer, and this model has none; use stop_ids")
    _check("stop", holds=len(stops) <= MOST_STOPS, but=f"has more than {MOST_STOPS} strings")
    for stop in stops:
        _check("stop", holds=bool(stop), but="has an empty string")
        _check("stop", holds=len(stop) <= LONGEST_STOP, but=f"is over {LONGEST_STOP} characters")


def _completions(submit: Submit) -> None:
    sampling, count = submit.sampling, submit.n
    if not 1 <= count <= MOST_COMPLETIONS:
        raise RequestError(f"n must be between 1 and {MOST_COMPLETIONS}, not {count}", "n")
    if submit.handover and (count > 1 or sampling.beams):
        parameter = "n" if count > 1 else "beams"
        raise RequestError(f"{parameter} cannot go with prefill on another engine", parameter)
    if sampling.beams:
        _beams(sampling, count)
    elif sampling.length_penalty != 1.0:
        raise RequestError(
            "length_penalty ranks beams and needs beams of at least 2", "length_penalty"
        )


def _beams(sampling: Sampling, count: int) -> None:
    if not 2 <= sampling.beams <= MOST_BEAMS:
        raise RequestError(
            f"beams must be between 2 and {MOST_BEAMS} (0: none), not {sampling.beams}", "beams"
        )
    if count > sampling.beams:
        raise RequestError(f"n is {count}, but only {sampling.beams} beams are kept", "n")
    plain = Sampling(temperature=0.0)
    for parameter in (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "chain",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "allowed_ids",
        "forbidden",
        "seed",
        "stop",
        "stop_ids",
        "min_tokens",
        "ignore_eos",
        "keep_special",
        "logprobs",
        "grammar",
        "thoughts",
        "line_seconds",
    ):
        allowed = getattr(plain, parameter)
        if getattr(sampling, parameter) != allowed:
            shown = "0" if parameter == "temperature" else "absent"
            raise RequestError(
                f"{parameter} cannot go with beam search; leave it {shown}", parameter
            )


def _grammar(sampling: Sampling, *, has_text: bool) -> None:
    if sampling.grammar is None:
        return
    _check("grammar", holds=has_text, but="needs a tokenizer, and this model has none")
    length = len(sampling.grammar.text)
    _check("grammar", holds=length <= LONGEST_GRAMMAR, but=f"is over {LONGEST_GRAMMAR} characters")
    if sampling.min_tokens:
        raise RequestError(
            "min_tokens cannot go with a grammar, which says itself when the answer ends",
            "min_tokens",
        )
    if sampling.ignore_eos:
        raise RequestError("ignore_eos cannot go with a grammar: it ends by EOS", "ignore_eos")
