"""A JSON schema in the forms that xgrammar knows: other words, no document that the schema forbids.

xgrammar 0.2 knows tuples only as 2020-12 writes them, references only along plain names, keywords
of objects and arrays only beside their type, and takes a bare array or object for an empty one.
Keywords of a type that the schema's is not (Rust's `format: int64` beside an integer) say nothing.
It enforces an `allOf` of one schema alone: plain schemas are merged keyword by keyword, where one
keyword can say what both say; others are left as they stand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from ridgeline.serve.sampling.schema import (
    ALONE,
    ARRAY,
    NUMBER,
    OBJECT,
    SAID_ONLY,
    STRING,
    Schema,
)

_SCHEMAS = ("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "not")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_TABLES = ("properties", "patternProperties", "$defs", "definitions")
_KINDS = (("object", OBJECT), ("array", ARRAY), ("number", NUMBER), ("string", STRING))
_OF_KIND = {
    "object": OBJECT | {"dependentRequired", "dependentSchemas", "dependencies"},
    "array": ARRAY | {"contains", "minContains", "maxContains", "uniqueItems", "additionalItems"},
    "integer": NUMBER,
    "number": NUMBER,
    "string": STRING,
    "boolean": frozenset[str](),
    "null": frozenset[str](),
}
"""Keywords that say something of values of one type."""
_OF_SOME_KIND = frozenset[str]().union(*_OF_KIND.values())
_OPEN_OBJECT = frozenset({*OBJECT} - {"required", "minProperties", "maxProperties"})
"""Keywords that say which members an object may have."""
_COUNTS = frozenset(
    {"minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength"}
)
_DEFINED = "$defs"


def known_forms(schema: Schema) -> Schema:
    """The schema in known forms; what is no schema is given back as it is.

    >>> known_forms({"items": [{"type": "string"}], "additionalItems": False})
    {'prefixItems': [{'type': 'string'}], 'items': False, 'type': 'array'}
    >>> known_forms({"type": "array", "minItems": 1})
    {'type': 'array', 'minItems': 1, 'items': {}}
    """
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Schema] = {}
    found = _node(schema, schema, moved)
    if moved:
        found[_DEFINED] = {**found.get(_DEFINED, {}), **moved}
    return found


def placed(schema: Schema, at: str) -> Schema:
    """The schema as it stands within another one: its references begin at its place there.

    >>> placed({"properties": {"a": {"$ref": "#/$defs/b"}, "c": {"$ref": "#"}}}, "#/$defs/f")
    {'properties': {'a': {'$ref': '#/$defs/f/$defs/b'}, 'c': {'$ref': '#/$defs/f'}}}
    """
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    target = found.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        found["$ref"] = at + target[1:]
    for key in _TABLES:
        if isinstance(found.get(key), dict):
            found[key] = {name: placed(one, at) for name, one in found[key].items()}
    for key in (*_LISTS, *_SCHEMAS):
        one = found.get(key)
        found |= {key: [placed(each, at) for each in one]} if isinstance(one, list) else {}
        found |= {key: placed(one, at)} if isinstance(one, dict) else {}
    return found


def _node(schema: Schema, root: Schema, moved: dict[str, Schema]) -> Schema:
    if not isinstance(schema, dict):
        return schema
    found = dict(merged(schema))
    _reference(found, root, moved)
    _tuple(found)
    for key in _TABLES:
        if isinstance(found.get(key), dict):
            found[key] = {name: _node(one, root, moved) for name, one in found[key].items()}
    for key in _LISTS:
        if isinstance(found.get(key), list):
            found[key] = [_node(one, root, moved) for one in found[key]]
    for key in _SCHEMAS:
        if key in found:
            found[key] = _node(found[key], root, moved)
    _without_nothing(found)
    _of_its_types(found)
    _typed(found)
    _named(found)
    _open(found)
    return found


def place_of(target: str, root: Schema) -> tuple[Any, bool]:
    """What a reference leads to, None where to nothing, and whether along plain names alone.

    >>> place_of("#/$defs/a", {"$defs": {"a": {}}}), place_of("#/$defs/b", {"$defs": {}})
    (({}, True), (None, False))
    """
    names = [unquote(one).replace("~1", "/").replace("~0", "~") for one in target[2:].split("/")]
    place: Any = root
    is_plain = "/".join(names) == target[2:]
    for name in names:
        if isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place, is_plain = place[int(name)], False
        elif isinstance(place, dict) and name in place:
            place = place[name]
        else:
            return None, False
    return place, is_plain


def _reference(schema: dict[str, Any], root: Schema, moved: dict[str, Schema]) -> None:
    """Let a reference along a list's number or an escaped name lead to a definition of its own."""
    target = schema.get("$ref")
    if not isinstance(target, str) or not target.startswith("#/"):
        return
    place, is_plain = place_of(target, root)
    if place is None or is_plain:
        return  # where there is none its compiler says so
    name = f"at {target[2:]}".translate({ord(sign): "." for sign in "/~%"})
    schema["$ref"] = f"#/{_DEFINED}/{name}"
    if name not in moved:
        moved[name] = True  # it may refer to itself
        moved[name] = _node(place, root, moved)


def _tuple(schema: dict[str, Any]) -> None:
    """Write a tuple of older drafts as 2020-12 does."""
    if isinstance(schema.get("items"), list) and "prefixItems" not in schema:
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema.pop("additionalItems")
    elif not isinstance(schema.get("items"), list) and "prefixItems" not in schema:
        schema.pop("additionalItems", None)  # it means nothing there
    places = schema.get("prefixItems")
    if isinstance(places, list):
        if False in places:
            places, schema["items"] = places[: places.index(False)], False
        schema["prefixItems"] = [{} if one is True else one for one in places]


def _without_nothing(schema: dict[str, Any]) -> None:
    """Leave out what restricts nothing, and what no document is."""
    if schema.get("uniqueItems") is False:
        del schema["uniqueItems"]
    if schema.get("propertyNames") is True:
        del schema["propertyNames"]
    if schema.get("prefixItems") == []:
        del schema["prefixItems"]
    for key in _COUNTS & schema.keys():
        if isinstance(schema[key], float) and schema[key].is_integer():
            schema[key] = int(schema[key])
    required = schema.get("required", ())
    if isinstance(schema.get("properties"), dict) and isinstance(required, list | tuple):
        schema["properties"] = {
            name: one
            for name, one in schema["properties"].items()
            if one is not False or name in required
        }
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            some = [one for one in schema[key] if one is not False]
            schema[key] = some or schema[key]


def _of_its_types(schema: dict[str, Any]) -> None:
    """Leave out keywords of other types than the schema's, which say nothing of its values."""
    given = schema.get("type")
    kinds = [_OF_KIND.get(str(one)) for one in (given if isinstance(given, list) else [given])]
    known = [keys for keys in kinds if keys is not None]
    if len(known) == len(kinds):
        for key in schema.keys() & _OF_SOME_KIND.difference(*known):
            del schema[key]


def _typed(schema: dict[str, Any]) -> None:
    """Name the only type that has all the keywords."""
    if "type" in schema or any(key in schema for key in ALONE):
        return
    all_of_types = OBJECT | ARRAY | NUMBER | STRING
    rest = {key for key in schema if key in all_of_types}
    kinds = [name for name, keys in _KINDS if rest and rest <= keys]
    if kinds:
        schema["type"] = "integer" if "multipleOf" in rest else kinds[0]


def _named(schema: dict[str, Any]) -> None:
    """Name the required members that are not described."""
    required, named = schema.get("required"), schema.get("properties", {})
    if not isinstance(required, list) or not isinstance(named, dict):
        return
    others = schema.get("additionalProperties", True)
    missing = [one for one in required if isinstance(one, str) and one not in named]
    if missing and others is not False and "patternProperties" not in schema:
        schema["properties"] = {**named, **dict.fromkeys(missing, others)}


def _open(schema: dict[str, Any]) -> None:
    """Say that a bare array or object may have anything in it."""
    given = schema.get("type")
    types = given if isinstance(given, list) else [given]
    if any(key in schema for key in ALONE):
        return
    if "array" in types and not {"items", "prefixItems", "unevaluatedItems"} & schema.keys():
        schema["items"] = {}
    if "object" in types and not _OPEN_OBJECT & schema.keys():
        schema["additionalProperties"] = {}


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
