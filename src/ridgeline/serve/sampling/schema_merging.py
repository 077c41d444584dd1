"""Schemas that must hold together, as one: `allOf` in the forms that a grammar knows.

xgrammar 0.2 enforces an `allOf` of one schema alone. Plain schemas are merged keyword by keyword,
where one keyword can say what both say; others are left as they stand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ridgeline.serve.sampling.schema import SAID_ONLY, Schema

_LARGER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_OTHERS = "additionalProperties"


def merged(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without `allOf` where that is possible, else as it is.

    >>> merged({"allOf": [{"type": "string"}, {"enum": ["a", "b"]}]})
    {'type': 'string', 'enum': ['a', 'b']}
    >>> merged({"allOf": [{"minimum": 1}, {"minimum": 3}], "type": "integer"})
    {'type': 'integer', 'minimum': 3}
    >>> merged({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})
    {'allOf': [{'pattern': 'a'}, {'pattern': 'b'}]}
    """
    parts = schema.get("allOf")
    if not isinstance(parts, list) or not parts:
        return schema
    rest = {key: one for key, one in schema.items() if key != "allOf"}
    if len(parts) == 1 and not _restricts(rest):
        return schema  # which is enforced as it is
    found: dict[str, Any] | None = rest
    for part in parts:
        found = None if found is None else _both(found, part)
    return schema if found is None else found


def _restricts(schema: dict[str, Any]) -> bool:
    return any(key not in SAID_ONLY and not key.startswith("x-") for key in schema)


def _both(one: dict[str, Any], other: Schema) -> dict[str, Any] | None:
    """A schema of what both allow; None where none is known."""
    if other is True:
        return one
    if not isinstance(other, dict) or not _members_agree(one, other):
        return None
    if {"items", "prefixItems"} <= {*one, *other}:
        return None  # what the one says of all, the other of the first
    found = dict(one)
    for key, value in other.items():
        if key not in found:
            found[key] = value
        elif key not in SAID_ONLY and found[key] != value:
            together = _TOGETHER.get(key)
            both = together(found[key], value) if together else None
            if both is None:
                return None
            found[key] = both
    return found


def _members_agree(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether what one says of members that it does not name holds for the other's as well."""
    if {"unevaluatedProperties", "unevaluatedItems"} & other.keys():
        return False  # of which its cousins know nothing
    if "patternProperties" in {*one, *other}:
        return False
    for schema, beside in ((one, other), (other, one)):
        named, more = schema.get("properties", {}), beside.get("properties", {})
        if not isinstance(named, dict) or not isinstance(more, dict):
            return False
        if schema.get(_OTHERS, True) not in (True, {}) and more.keys() - named.keys():
            return False
    return True


def _members(one: Any, other: Any) -> dict[str, Any] | None:
    found = dict(one)
    for name, schema in other.items():
        if name in found and found[name] != schema:
            both = _both(found[name], schema) if isinstance(found[name], dict) else None
            if both is None:
                return None
            found[name] = both
        else:
            found[name] = schema
    return found


def _required(one: Any, other: Any) -> list[Any]:
    return [*one, *(name for name in other if name not in one)]


def _values(one: Any, other: Any) -> list[Any] | None:
    return [value for value in one if value in other] or None


_TOGETHER: dict[str, Callable[[Any, Any], Any]] = {
    "properties": _members,
    "required": _required,
    "enum": _values,
    **dict.fromkeys(_LARGER, max),
    **dict.fromkeys(_SMALLER, min),
}
"""How one keyword says what two say; None: it cannot."""
