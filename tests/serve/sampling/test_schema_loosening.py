"""Schemas are loosened as far as grammars need it, and what is let go is told."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.serve.sampling.schema import unenforced
from ridgeline.serve.sampling.schema_loosening import loosened

TEXT = {"type": "string"}
NODE = {"type": "object", "properties": {"x": TEXT}, "required": ["x"]}
DECIMAL = {"anyOf": [{"type": "number"}, {**TEXT, "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*$"}]}


@pytest.mark.parametrize(
    ("schema", "told", "rest"),
    [
        ({"type": "array", "uniqueItems": True}, ("uniqueItems",), {"type": "array", "items": {}}),
        (DECIMAL, ("pattern",), {"anyOf": [{"type": "number"}, TEXT]}),
        ({**TEXT, "format": "binary"}, ("format",), TEXT),
        ({"type": "integer", "format": "int32"}, ("format",), {"type": "integer"}),
        ({**NODE, "anyOf": [{"required": ["y"]}]}, ("anyOf",), NODE),
        (
            {"$defs": {"x": NODE}, "type": "object", "$ref": "#/$defs/x"},
            ("type",),
            {"$defs": {"x": NODE}, "$ref": "#/$defs/x"},
        ),
        (
            {"type": "array", "items": {"$ref": "#/$defs/x"}},
            ("$ref",),
            {"type": "array", "items": {}},
        ),
        ({"$ref": "http://a/b"}, ("$ref",), {}),
        ({"allOf": [NODE, TEXT]}, ("allOf",), {"allOf": [NODE]}),
        ({"oneOf": [NODE, NODE]}, ("oneOf",), {"anyOf": [NODE, NODE]}),
        ({"enum": ["a", 1], "type": "string"}, ("type",), {"enum": ["a", 1]}),
        ({"enum": ["a"], "type": "string", "if": {}}, ("if",), {"enum": ["a"], "type": "string"}),
        ({"const": 1, "anyOf": [NODE]}, ("anyOf",), {"const": 1}),
        (
            {**NODE, "required": ["x", "z"], "if": {}},
            ("if",),
            {**NODE, "required": ["x", "z"], "properties": {"x": TEXT, "z": True}},
        ),
        ({**TEXT, "pattern": "^a$", "maxLength": 2}, ("maxLength",), {**TEXT, "pattern": "^a$"}),
        ({"properties": {"a": {"not": {}}}}, ("not",), {"properties": {"a": {}}, "type": "object"}),
        ({"type": "array", "items": {"foo": 1}}, ("foo",), {"type": "array", "items": {}}),
        (NODE, (), NODE),
        ({"properties": ["x"]}, (), {"properties": ["x"]}),
    ],
)
def test_only_what_cannot_be_enforced_is_let_go(
    schema: Any, told: tuple[str, ...], rest: Any
) -> None:
    before = repr(schema)
    found, let_go = loosened(schema)
    assert found == rest
    assert let_go == told
    assert repr(schema) == before
    if told:
        assert unenforced(found) is None
