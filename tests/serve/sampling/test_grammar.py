"""Answers under a grammar match it, whatever the logits say; what cannot be enforced is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from ridgeline.serve.messages import Grammar, Sampling, Submit
from ridgeline.serve.sampling.compiler import words_of
from ridgeline.serve.sampling.grammar import grammars_of
from ridgeline.serve.sampling.sampler import Wanted, pick
from ridgeline.serve.sampling.schema import unenforced
from ridgeline.serve.sampling.state import SamplingState, take
from ridgeline.serve.sampling.validate import RequestError

LIBRARY = Path(__file__).parents[3] / "examples/models/library"
tokenizer = PreTrainedTokenizerFast.from_pretrained(LIBRARY)
EOS, VOCAB = 1, 2048
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"type": "integer", "minimum": 3, "maximum": 12},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "size", "kind"],
}
GRAMMARS = {
    "json_schema": json.dumps(SCHEMA),
    "regex": "[a-f]{2,4}-[0-9]+x",
    "choice": '["yes", "no \\"way\\"", "é"]',
    "ebnf": 'root ::= "(" root ")" | "x"',
}


def state_of(kind: Any, text: str, **asked: Any) -> SamplingState:
    grammar = Grammar(kind=kind, text=text)
    sampling = Sampling(max_tokens=400, grammar=grammar, **asked)
    submit = Submit(id="a", prompt=(5,), sampling=sampling)
    return SamplingState(submit, 0, vocab=VOCAB, eos_ids=(EOS,), tokenizer=tokenizer)


def answer(state: SamplingState, num_drafts: int = 0) -> tuple[str, int]:
    """Text from noise, and how many drafts were accepted."""
    generator = torch.Generator().manual_seed(state.sampling.seed or 0)
    text, accepted = "", 0
    while True:
        drafts = tuple(torch.randint(VOCAB, (num_drafts,), generator=generator).tolist())
        logits = torch.randn(1 + num_drafts, VOCAB, generator=generator)
        logits[:, EOS] += 3.0
        for row, draft in enumerate(drafts):
            logits[row, draft] += 6.0
        picked = pick(logits, [Wanted(state, drafts)])[0]
        accepted += picked.num_accepted
        delta = take(state, picked)
        text += delta.text
        if delta.finish_reason is not None:
            assert delta.finish_reason == "stop", text
            return text, accepted


def matches(kind: str, text: str) -> bool:
    if kind == "json_schema":
        found = json.loads(text)
        return (
            list(found) == ["name", "size", "kind"]
            and len(found["name"]) <= 8
            and 3 <= found["size"] <= 12
            and found["kind"] in {"cat", "dog"}
        )
    if kind == "regex":
        return re.fullmatch(GRAMMARS["regex"], text) is not None
    if kind == "choice":
        return text in json.loads(GRAMMARS["choice"])
    return text.count("(") == text.count(")") and re.fullmatch(r"\(*x\)*", text) is not None


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("num_drafts", [0, 3])
@pytest.mark.parametrize("kind", GRAMMARS)
def test_noise_becomes_what_the_grammar_says(kind: str, num_drafts: int) -> None:
    for seed in range(6):
        asked: dict[str, Any] = {"temperature": 0.0} if seed == 0 else {"seed": seed}
        text, _ = answer(state_of(kind, GRAMMARS[kind], **asked), num_drafts)
        assert matches(kind, text), text


def test_json_objects_are_json_objects() -> None:
    state = state_of("json_object", "", seed=1, logit_bias={tokenizer.encode("}")[0]: 12.0})
    assert isinstance(json.loads(answer(state)[0]), dict)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("choice", '["é", "è"]'),
        ("choice", '["👩", "👧"]'),
        ("json_schema", '{"enum": ["日本", "日木"]}'),
        ("json_schema", '{"const": "\\ud83d\\udc69"}'),
        ("regex", "[👩👧]"),
    ],
)
def test_characters_may_part_in_the_middle(kind: str, text: str) -> None:
    found, _ = answer(state_of(kind, text, temperature=0.0))
    assert found.strip('"') in ("é", "è", "日本", "日木", "👩", "👧")


def test_drafts_along_the_grammar_are_accepted_and_the_matcher_stands_where_the_answer_is() -> None:
    state = state_of("choice", '["import sys", "import os"]', temperature=0.0)
    drafts = tuple(tokenizer.encode("import sys"))
    wrong = (*drafts[:1], 5, 6)
    logits = torch.zeros(4, VOCAB)
    (picked,) = pick(logits, [Wanted(state, wrong)])
    assert picked.tokens[0] == drafts[0] or picked.num_accepted == 0
    logits = torch.zeros(len(drafts) + 1, VOCAB)
    for row, draft in enumerate(drafts):
        logits[row, draft] = 5.0
    (picked,) = pick(logits, [Wanted(state, drafts)])
    assert picked.num_accepted == len(drafts)
    assert picked.tokens[-1] == EOS
    assert take(state, picked).text == "import sys"


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json_schema", '{"type":', "not JSON"),
        ("json_schema", '{"type": "integr"}', "integr"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("regex", "[", "Unclosed"),
        ("regex", "(?=a)b", "Lookahead"),
        ("choice", "[]", "at least one"),
        ("choice", '["a", 3]', "list of strings"),
        ("ebnf", 'foo ::= "a"', "root"),
        ("ebnf", 'root ::= "a" x', "x"),
    ],
)
def test_a_grammar_that_cannot_be_enforced_is_refused(kind: str, text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        state_of(kind, text)
    assert error.value.parameter == "grammar"
    assert "\n" not in str(error.value)


INTEGER = {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"type": "array", "items": INTEGER, "contains": {"const": 3}}, "contains"),
        ({"type": "integer", "not": {"const": 3}}, "not"),
        ({"allOf": [INTEGER, {"minimum": 3}]}, "allOf"),
        ({"oneOf": [INTEGER, {"type": "number"}]}, "oneOf"),
        ({"$ref": "#/$defs/x", "minimum": 5, "$defs": {"x": INTEGER}}, "minimum beside"),
        ({"$ref": "http://a/b"}, "outside"),
        ({"minimum": 3}, "minimum without a type"),
        ({"type": "string", "minimum": 3}, "minimum without a type"),
        ({"type": "string", "pattern": "^x+$", "maxLength": 2}, "maxLength beside"),
        ({"type": "string", "pattern": "(?=x)x"}, "pattern"),
        ({"type": "string", "format": "iri"}, "iri"),
        ({"type": "integer", "multipleOf": 5, "minimum": 2}, "minimum beside"),
        ({"type": "number", "multipleOf": 0.5}, "multipleOf"),
        ({"type": "object", "required": ["a"]}, "required a"),
        ({"type": "object", "properties": {"a": {"optional": True}}}, "schema.a: optional"),
        ({"type": "object", "if": {}, "properties": {}}, "if"),
        ({"type": "array", "items": {"type": "integer", "foo": 1}}, "schema.items: foo"),
        ({"anyOf": [{"type": "string", "contains": {}}]}, "contains"),
        ([1], "not an object"),
    ],
)
def test_keywords_that_would_be_ignored_are_found(schema: Any, what: str) -> None:
    found = unenforced(schema)
    assert found is not None
    assert what in found


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        SCHEMA,
        {"title": "x", "$defs": {"y": INTEGER}, "$ref": "#/$defs/y"},
        {"anyOf": [INTEGER, {"type": "null"}]},
        {"oneOf": [INTEGER, {"type": "string"}]},
        {
            "oneOf": [
                {"type": "object", "properties": {"k": {"const": k}}, "required": ["k"]}
                for k in "ab"
            ],
            "discriminator": {"propertyName": "k"},
        },
        {"type": ["integer", "null"], "minimum": 3},
        {"properties": {"a": INTEGER}, "required": ["a"]},
        {"type": "string", "enum": ["a"]},
        {"type": "string", "contentEncoding": "base64", "nullable": True},
    ],
)
def test_what_is_enforced_passes(schema: Any) -> None:
    assert unenforced(schema) is None


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param("regex", "((((([a-z]{1,9}){1,9}){1,9}){1,9}){1,9})x", marks=pytest.mark.slow),
        ("regex", "a" * 3000 + "(((([a-z]{1,9}){1,9}){1,9}){1,9})x"),
        ("ebnf", "root ::= (((([a-z]{1,9}){1,9}){1,9}){1,9}){1,9}"),
    ],
)
def test_a_grammar_that_can_be_followed_in_too_many_ways_is_refused(kind: Any, text: str) -> None:
    with pytest.raises(RequestError, match="too many ways") as caught:
        state_of(kind, text)
    assert caught.value.parameter == "grammar"


@pytest.mark.parametrize(
    "text",
    [r"(\d{1,3}\.){3}\d{1,3}", r"(\w{1,30}, ){1,100}", "((a*)*)*b", "(.*a){60}", "[a-z]{1,9999}"],
)
def test_repetitions_that_do_no_harm_are_served(text: str) -> None:
    assert state_of("regex", text).matcher is not None


def test_a_matcher_that_takes_too_long_is_given_up_at_the_next_token() -> None:
    matcher = state_of("regex", "[a-z]{3}").matcher
    assert matcher is not None
    matcher.accept(tokenizer.convert_tokens_to_ids("a"))
    matcher._longest_seconds = 1.0
    with pytest.raises(RequestError, match="too many ways"):
        matcher.accept(tokenizer.convert_tokens_to_ids("a"))


@pytest.mark.slow
def test_a_compiler_that_is_late_or_dies_is_one_refusal_and_the_next_grammar_compiles() -> None:
    grammars = grammars_of(tokenizer, VOCAB, (EOS,))
    grammars.compile(Grammar(kind="regex", text="first"))
    compiler = grammars._compiler
    assert compiler is not None
    assert compiler._process is not None
    compiler._process.kill()
    compiler._process.wait()
    grammars.compile(Grammar(kind="regex", text="second"))
    compiler._seconds, usual = 0.2, compiler._seconds
    many = {f"p{at}": {"type": "string"} for at in range(1500)}
    slow = Grammar(kind="json_schema", text=json.dumps({"type": "object", "properties": many}))
    with pytest.raises(RequestError, match=r"takes longer than 0\.2 s to compile; make it smaller"):
        grammars.compile(slow)
    compiler._seconds = usual
    grammars.compile(Grammar(kind="regex", text="third"))
    assert not grammars.knows(slow)


def test_the_words_of_a_vocabulary_are_those_that_xgrammar_has() -> None:
    import xgrammar

    words = [bytes([sign]) for sign in range(256)] + ["é\n".encode(), b"<end>"]
    about = xgrammar.TokenizerInfo(words, stop_token_ids=[257])
    assert words_of(about.serialize_json()) == about.decoded_vocab
