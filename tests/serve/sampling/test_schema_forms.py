"""Schemas in words that xgrammar does not know mean the same: what they forbid is kept out."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from ridgeline.serve.http.protocol.chat import ChatRequest
from ridgeline.serve.http.tool_request import forced
from ridgeline.serve.messages import Grammar
from ridgeline.serve.sampling.compiler import compile_grammar
from ridgeline.serve.sampling.schema import unenforced
from ridgeline.serve.sampling.schema_forms import known_forms

TEXT = {"type": "string"}


@functools.cache
def compiler() -> Any:
    import xgrammar

    words = [*map(chr, range(128)), "<end>"]
    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(words, stop_token_ids=[128]))


def allows(schema: Any, document: Any) -> bool:
    """Whether the grammar of a schema takes a document, written by json."""
    import xgrammar

    compiled = compile_grammar(compiler(), Grammar(kind="json_schema", text=json.dumps(schema)))
    matcher = xgrammar.GrammarMatcher(compiled)
    return bool(matcher.accept_string(json.dumps(document)) and matcher.accept_token(128))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"maxItems": 2}, [1, "a"], [1, 2, 3]),
        ({"minItems": 1}, [1], []),
        ({"minItems": 1.0}, [{}], []),
        ({"type": "array"}, [1, "a", {"b": 2}], {}),
        ({"type": "object"}, {"a": 1, "b": [2]}, []),
        ({"maxProperties": 1}, {"a": 1}, {"a": 1, "b": 2}),
        ({"type": "object", "minProperties": 1}, {"a": 1}, {}),
        ({"patternProperties": {"^f.*o$": {"type": "integer"}}}, {"foo": 1}, {"foo": "a"}),
        ({"propertyNames": {"maxLength": 3}}, {"foo": 1}, {"foobar": 1}),
        ({"minLength": 2}, "ab", "a"),
        ({"pattern": "^a+$"}, "aa", "b"),
        ({"minimum": 3}, 3, 2),
        ({"multipleOf": 2}, 4, 3),
        ({"format": "date"}, "2026-11-30", "today"),
        ({"items": [TEXT, {"type": "integer"}], "additionalItems": False}, ["a", 1], ["a", "b"]),
        ({"items": [TEXT], "additionalItems": TEXT}, ["a", "b"], ["a", 1]),
        ({"prefixItems": [True, TEXT], "minItems": 2}, [1, "a"], [1, 2]),
        ({"prefixItems": [TEXT, False], "minItems": 1}, ["a"], ["a", "b"]),
        ({"properties": {"a": TEXT, "b": False}, "required": ["a"]}, {"a": "x"}, {"b": 1}),
        ({"required": ["a"]}, {"a": 1}, {}),
        ({"anyOf": [False, TEXT]}, "a", 1),
        ({**TEXT, "additionalProperties": False, "minimum": 3}, "a", 1),
        ({"type": "integer", "format": "int64", "contains": TEXT}, 1, "a"),
        ({"type": ["string", "null"], "maxLength": 1, "uniqueItems": True}, None, "ab"),
        ({"allOf": [TEXT, {"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, "b", "a"),
        ({"allOf": [{"minimum": 2}, {"minimum": 5}], "type": "integer"}, 5, 3),
        (
            {
                "allOf": [
                    {"properties": {"a": TEXT}, "required": ["a"]},
                    {"properties": {"b": {"type": "integer"}}, "required": ["b"]},
                ],
                "type": "object",
            },
            {"a": "x", "b": 1},
            {"a": "x"},
        ),
        (
            {
                "allOf": [{"properties": {"a": True}, "required": ["a"]}],
                "properties": {"a": TEXT},
                "additionalProperties": False,
            },
            {"a": "x"},
            {"a": 1},
        ),
        ({"type": "array", "items": TEXT, "uniqueItems": False}, ["a", "a"], [1]),
    ],
)
def test_other_words_are_enforced(schema: Any, good: Any, bad: Any) -> None:
    before = repr(schema)
    assert allows(schema, good)
    assert not allows(schema, bad)
    assert repr(schema) == before
    forms = known_forms(schema)
    assert unenforced(forms) is None
    assert known_forms(forms) == forms


@pytest.mark.parametrize(
    "target",
    ["#/properties/a/anyOf/1", "#/$defs/tilde~0field", "#/$defs/per%25cent", "#/$defs/a~1b"],
)
def test_a_reference_may_go_along_numbers_and_escaped_names(target: str) -> None:
    integer = {"type": "integer"}
    schema = {
        "type": "object",
        "properties": {"a": {"anyOf": [TEXT, integer]}, "b": {"$ref": target}},
        "required": ["a", "b"],
        "additionalProperties": False,
        "$defs": {"tilde~field": integer, "per%cent": integer, "a/b": integer},
    }
    assert allows(schema, {"a": "x", "b": 1})
    assert not allows(schema, {"a": "x", "b": "y"})


def test_a_moved_schema_may_refer_to_itself() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/anyOf/0"}}}
    schema = {"anyOf": [node, {"type": "null"}]}
    assert allows(schema, {"next": {"next": {}}})
    assert not allows(schema, {"next": 1})


def test_tools_may_define_the_same_name_differently() -> None:
    point = {"type": "object", "properties": {"at": {"$ref": "#/definitions/P"}}}
    tools = [
        {"function": {"name": name, "parameters": {**point, "definitions": {"P": kind}}}}
        for name, kind in (("f", TEXT), ("g", {"type": "integer"}))
    ]
    asked = {"messages": [{"role": "user", "content": "x"}], "tool_choice": "required"}
    grammar = forced(ChatRequest.model_validate({**asked, "tools": tools}), [])
    assert grammar is not None
    schema = json.loads(grammar.text)
    assert allows(schema, [{"name": "f", "parameters": {"at": "a"}}])
    assert allows(schema, [{"name": "g", "parameters": {"at": 1}}])
    assert not allows(schema, [{"name": "g", "parameters": {"at": "a"}}])


def test_what_is_no_schema_is_left_to_its_compiler() -> None:
    odd: list[Any] = [[], "a", 3, {"properties": ["x"]}, {"required": 3}, {"anyOf": {}}]
    odd += [{"type": ["array", {}]}, {"$ref": "#/nowhere/0"}, {"items": []}, {"prefixItems": 1}]
    for one in odd:
        assert type(known_forms(one)) is type(one)
