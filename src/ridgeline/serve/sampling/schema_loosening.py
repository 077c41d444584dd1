"""A JSON schema without what no grammar holds, in the forms that a grammar knows.

For requests that do not ask for `strict`: OpenAI does its best with their schemas, and so are ours
enforced as far as they can be. What `schema.unenforced` would refuse is taken out where it stands,
and told; what `schema_forms.known_forms` writes otherwise is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ridgeline.serve.sampling.schema import (
    ALONE,
    APART,
    FORMATS,
    MEANT,
    OF_TYPE,
    SAID_ONLY,
    plainly_disjoint,
    unenforced,
)
from ridgeline.serve.sampling.schema_forms import known_forms, place_of

Told = Callable[[str], None]
_HOLDING = ("properties", "items", "prefixItems")
"""Keywords that say more than the combinations of schemas that stand beside them."""
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems")


def loosened(schema: Any) -> tuple[Any, tuple[str, ...]]:
    """The schema as far as a grammar can hold it, and the keywords that were let go.

    >>> loosened({"type": "array", "items": {"type": "string"}, "uniqueItems": True})
    ({'type': 'array', 'items': {'type': 'string'}}, ('uniqueItems',))

    What is no schema is given back as it is.
    """
    told: dict[str, None] = {}
    try:
        plain = _leading_somewhere(schema, schema, told.setdefault)
        plain = _without_sizes(plain, told.setdefault)
        forms = known_forms(plain)
        if unenforced(forms) is None:
            return plain, tuple(told)
    except (AttributeError, TypeError):
        return schema, ()  # it is no schema, which its compiler says
    return _node(forms, told.setdefault), tuple(told)


def without_annotations(schema: Any) -> tuple[Any, tuple[str, ...]]:
    """The schema without the keywords of no draft, and their names.

    They restrict nothing (JSON Schema 2020-12, core, section 6.5), nor does a format of numbers,
    and OpenAI's clients put some of their own into schemas that they want enforced.

    >>> without_annotations({"type": "array", "items": {"type": "string"}, "min_items": 1})
    ({'type': 'array', 'items': {'type': 'string'}}, ('min_items',))
    """
    told: dict[str, None] = {}
    return _meant(schema, told.setdefault), tuple(told)


def _meant(schema: Any, tell: Told) -> Any:
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    _drop(found, {key for key in _restricting(found) if key not in MEANT}, tell)
    _drop(found, _size(found), tell)
    return _inside(found, lambda one: _meant(one, tell))


def _leading_somewhere(schema: Any, root: Any, tell: Told) -> Any:
    """The schema without references to what it does not have."""
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    target = found.get("$ref")
    if isinstance(target, str) and target.startswith("#/") and place_of(target, root)[0] is None:
        _drop(found, {"$ref"}, tell)
    return _inside(found, lambda one: _leading_somewhere(one, root, tell))


def _without_sizes(schema: Any, tell: Told) -> Any:
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    _drop(found, _size(found), tell)
    return _inside(found, lambda one: _without_sizes(one, tell))


def _size(schema: dict[str, Any]) -> set[str]:
    """The `format` of a number, OpenAPI's word for what holds it (`int64`): no draft has one."""
    given = schema.get("type")
    types = given if isinstance(given, list) else [given]
    return {"format"} & schema.keys() if {"integer", "number"} >= {*types} - {"null"} else set()


def _node(schema: Any, tell: Told) -> Any:
    """One schema and all in it."""
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    _one_combination(found, tell)
    _only_of_type(found, tell)
    _not_apart(found, tell)
    _plain_text(found, tell)
    return _inside(found, lambda one: _node(one, tell))


def _inside(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The schema with a change made to each of those in it."""
    found = dict(schema)
    for key in _NAMED:
        if isinstance(found.get(key), dict):
            found[key] = {name: change(one) for name, one in found[key].items()}
    for key in _LISTED:
        if isinstance(found.get(key), list):
            found[key] = [change(one) for one in found[key]]
    for key in _SINGLE:
        if key in found:
            found[key] = change(found[key])
    return found


def _drop(schema: dict[str, Any], keys: set[str], tell: Told) -> None:
    for key in sorted(keys):
        del schema[key]
        tell(key)


def _restricting(schema: dict[str, Any]) -> set[str]:
    return {key for key in schema if key not in SAID_ONLY and not key.startswith("x-")}


def _one_combination(schema: dict[str, Any], tell: Told) -> None:
    """Leave a reference, a combination or fixed values alone, or what stands beside them."""
    named = _restricting(schema)
    combined = [key for key in ALONE if key in named]
    if not combined:
        return
    target = schema.get("$ref", "#")
    if target != "#" and not str(target).startswith("#/"):
        _drop(schema, {"$ref"}, tell)
    elif named & set(_HOLDING):
        _drop(schema, set(combined), tell)
    else:
        _drop(schema, named - {combined[-1] if combined[-1] in ("const", "enum") else combined[0]}
              - _types_of_fixed(schema, combined), tell)  # fmt: skip
    if len(schema.get("allOf", [0])) != 1:
        schema["allOf"] = schema["allOf"][:1]
        tell("allOf")
    if "oneOf" in schema and not plainly_disjoint(schema["oneOf"]):
        schema["anyOf"] = schema.pop("oneOf")
        tell("oneOf")


def _types_of_fixed(schema: dict[str, Any], combined: list[str]) -> set[str]:
    """The type beside fixed values, where the values alone leave nothing of it to enforce."""
    alone = {key: one for key, one in schema.items() if key in (*combined, "type")}
    return {"type"} if len(combined) == 1 and unenforced(alone) is None else set()


def _only_of_type(schema: dict[str, Any], tell: Told) -> None:
    """Leave the keywords that are enforced with the schema's type."""
    rest = _restricting(schema) - {"type", *ALONE}
    given = schema.get("type")
    if given is None:
        kinds = [OF_TYPE["object"], OF_TYPE["array"]]
        allowed = max(kinds, key=lambda keys: len(rest & keys))
    else:
        types = given if isinstance(given, list) else [given]
        allowed = frozenset[str]().union(*(OF_TYPE.get(str(one), ()) for one in types))
    _drop(schema, rest - allowed, tell)


def _not_apart(schema: dict[str, Any], tell: Told) -> None:
    """Leave the first of keywords that are not enforced together."""
    for first, others in APART:
        if first in schema:
            _drop(schema, set(schema) & set(others.split()), tell)


def _plain_text(schema: dict[str, Any], tell: Told) -> None:
    """Leave the formats and patterns that grammars know."""
    if "format" in schema and schema["format"] not in FORMATS:
        _drop(schema, {"format"}, tell)
    if "(?" in str(schema.get("pattern", "")).replace("(?:", ""):
        _drop(schema, {"pattern"}, tell)
