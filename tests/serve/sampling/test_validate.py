"""Requests that cannot be served are refused by the name of what is wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ridgeline.batching.policies import Limits
from ridgeline.serve.messages import Grammar, Sampling, Submit, ThoughtBudget
from ridgeline.serve.sampling.validate import RequestError, validate

LIMITS = Limits(max_length=100)
GRAMMAR = Grammar(kind="regex", text="a+")


def check(*, has_text: bool = True, **asked: Any) -> None:
    fields = {one: asked.pop(one) for one in ("prompt", "n", "handover") if one in asked}
    submit = Submit(**{"id": "a", "prompt": (1, 2), "sampling": Sampling(**asked), **fields})
    validate(submit, LIMITS, vocab=50, has_text=has_text)


@pytest.mark.parametrize(
    ("parameter", "asked"),
    [
        ("prompt", {"prompt": ()}),
        ("prompt", {"prompt": (50,)}),
        ("prompt", {"prompt": (-1,)}),
        ("prompt", {"prompt": (1,) * 100}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": 99}),
        ("min_tokens", {"min_tokens": -1}),
        ("min_tokens", {"min_tokens": 17}),
        ("temperature", {"temperature": -0.1}),
        ("temperature", {"temperature": float("nan")}),
        ("temperature", {"temperature": 1e-9}),
        ("top_k", {"top_k": -1}),
        ("top_p", {"top_p": 0.0}),
        ("top_p", {"top_p": 1.1}),
        ("min_p", {"min_p": 1.1}),
        ("repetition_penalty", {"repetition_penalty": 0.0}),
        ("presence_penalty", {"presence_penalty": 2.1}),
        ("frequency_penalty", {"frequency_penalty": -2.1}),
        ("seed", {"seed": 2**63}),
        ("logprobs", {"logprobs": 21}),
        ("logprobs", {"logprobs": -1}),
        ("prompt_logprobs", {"prompt_logprobs": 21}),
        ("logit_bias", {"logit_bias": {50: 1.0}}),
        ("logit_bias", {"logit_bias": {5: 101.0}}),
        ("stop_ids", {"stop_ids": (50,)}),
        ("stop", {"stop": ("",)}),
        ("stop", {"stop": ("a",) * 33}),
        ("stop", {"stop": ("a" * 300,)}),
        ("stop", {"stop": ("a",), "has_text": False}),
        ("n", {"n": 0}),
        ("n", {"n": 129}),
        ("n", {"n": 2, "handover": True}),
        ("length_penalty", {"length_penalty": 2.0}),
        ("beams", {"beams": 1, "temperature": 0.0}),
        ("n", {"beams": 2, "n": 3, "temperature": 0.0}),
        ("temperature", {"beams": 2}),
        ("seed", {"beams": 2, "temperature": 0.0, "seed": 1}),
        ("stop", {"beams": 2, "temperature": 0.0, "stop": ("a",)}),
        ("beams", {"beams": 2, "temperature": 0.0, "handover": True}),
        ("grammar", {"grammar": GRAMMAR, "has_text": False}),
        ("grammar", {"grammar": Grammar(kind="regex", text="a" * 70_000)}),
        ("min_tokens", {"grammar": GRAMMAR, "min_tokens": 2}),
        ("ignore_eos", {"grammar": GRAMMAR, "ignore_eos": True}),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(parameter: str, asked: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as error:
        check(**asked)
    assert error.value.parameter == parameter
    assert parameter in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.0, "beams": 4, "n": 4, "length_penalty": -1.0},
        {"max_tokens": 98},
        {"seed": -5, "stop": ("\n",), "stop_ids": (3,), "logit_bias": {0: -100.0}},
        {"grammar": GRAMMAR, "logprobs": 20},
    ],
)
def test_what_can_be_served_passes(asked: dict[str, Any]) -> None:
    check(**asked)


def test_every_parameter_that_beam_search_does_not_have_is_refused() -> None:
    """A field that is added to Sampling must be thought of here."""
    shared = {
        "max_tokens",
        "temperature",
        "prompt_logprobs",
        "beams",
        "length_penalty",
        "keep_stop",
    }
    changed = {
        "min_tokens": 1,
        "top_k": 1,
        "top_p": 0.5,
        "min_p": 0.5,
        "chain": ("top_p", "temperature"),
        "repetition_penalty": 1.5,
        "presence_penalty": 1.0,
        "frequency_penalty": 1.0,
        "logit_bias": {1: 1.0},
        "allowed_ids": (1,),
        "forbidden": ((1, 2),),
        "keep_special": True,
        "seed": 1,
        "stop": ("a",),
        "stop_ids": (1,),
        "ignore_eos": True,
        "logprobs": 1,
        "grammar": GRAMMAR,
        "thoughts": ThoughtBudget(most=1, open=1, close=2, inside=True),
        "line_seconds": 1.0,
    }
    assert {one.name for one in msgspec.structs.fields(Sampling)} == shared | set(changed)
    for parameter, value in changed.items():
        with pytest.raises(RequestError) as error:
            check(beams=2, temperature=0.0, **{parameter: value})
        assert error.value.parameter == parameter
