"""What of a JSON schema xgrammar does not enforce, and so is refused: it would be ignored.

xgrammar 0.2 compiles schemas into grammars and passes over keywords, or combinations of them, that
it has no rule for. Each line below was tried: with it, no document that breaks the schema gets
through. Properties come in the schema's order, and those that it does not name do not come at all:
completions are fewer than the schema's documents, never others. Patterns match the whole string.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

Schema = Any
"""A schema as parsed JSON."""
SAID_ONLY = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "$comment",
        "$schema",
        "$id",
        "$defs",
        "definitions",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",
        "example",
        "externalDocs",
        "nullable",
        "contentMediaType",
        "contentEncoding",
        "contentSchema",
    }
)
"""Keywords that restrict nothing; OpenAPI's `nullable` allows more, of which nothing comes."""
OBJECT = frozenset(
    {
        "properties",
        "required",
        "additionalProperties",
        "unevaluatedProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
    }
)
ARRAY = frozenset({"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"})
NUMBER = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
STRING = frozenset({"minLength", "maxLength", "pattern", "format"})
OF_TYPE = {
    "object": OBJECT,
    "array": ARRAY,
    "integer": NUMBER,
    "number": NUMBER - {"multipleOf"},
    "string": STRING,
    "boolean": frozenset[str](),
    "null": frozenset[str](),
}
FORMATS = frozenset(
    {
        "email",
        "date",
        "time",
        "date-time",
        "duration",
        "ipv4",
        "ipv6",
        "hostname",
        "uuid",
        "uri",
        "uri-reference",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
    }
)
APART = (
    ("pattern", "minLength maxLength format"),
    ("format", "minLength maxLength"),
    ("multipleOf", "minimum maximum exclusiveMinimum exclusiveMaximum"),
    ("patternProperties", "properties additionalProperties unevaluatedProperties propertyNames"),
    ("propertyNames", "properties"),
)
"""Keywords that only the first of is enforced when they stand together."""
ALONE = ("$ref", "anyOf", "oneOf", "allOf", "const", "enum")
"""Keywords beside which nothing else is enforced."""


_ELSEWHERE = (
    "type if then else not contains minContains maxContains uniqueItems dependentRequired"
    " dependentSchemas dependencies additionalItems $dynamicRef $recursiveRef $anchor"
    " $dynamicAnchor $recursiveAnchor"
)
"""What drafts of JSON Schema have beside the keywords above."""
MEANT = OBJECT | ARRAY | NUMBER | STRING | SAID_ONLY | {*ALONE, *_ELSEWHERE.split()}
"""Every keyword that some draft has a meaning for."""


def unenforced(schema: Schema, where: str = "schema") -> str | None:
    """What of a schema would not be enforced, and where; None: all of it is."""
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, dict):
        return f"{where} is not an object"
    named = {key for key in schema if key not in SAID_ONLY and not key.startswith("x-")}
    return (
        _alone(schema, named, where)
        or _typed(schema, named, where)
        or _strings(schema, where)
        or _objects(schema, where)
        or _inside(schema, where)
    )


def _alone(schema: Schema, named: set[str], where: str) -> str | None:
    for key in ALONE:
        others = named - {key}
        if key in named and others:
            if key in {"const", "enum"} and others == {"type"} and _fits(schema, key):
                return None
            return f"{where}: {sorted(others)[0]} beside {key}"
    if len(schema.get("allOf", [0])) != 1:
        return f"{where}: allOf of several schemas"
    if "oneOf" in schema and not plainly_disjoint(schema["oneOf"]):
        return f"{where}: oneOf of schemas that are not plainly disjoint (use anyOf)"
    target = schema.get("$ref", "#")
    if target != "#" and not str(target).startswith("#/"):
        return f"{where}: $ref to {target}, outside of the schema"
    return None


def _fits(schema: Schema, key: str) -> bool:
    """Whether all values are of the type, so that it adds nothing."""
    values = schema["enum"] if key == "enum" else [schema["const"]]
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return all(any(_is(value, one) for one in types) for value in values)


def _is(value: Any, name: Any) -> bool:
    kinds: dict[str, tuple[type, ...]] = {
        "object": (dict,),
        "array": (list,),
        "integer": (int,),
        "number": (int, float),
        "string": (str,),
        "boolean": (bool,),
        "null": (type(None),),
    }
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, kinds.get(name, ()))


def _typed(schema: Schema, named: set[str], where: str) -> str | None:
    rest = named - {"type", *ALONE}
    given = schema.get("type")
    types = given if isinstance(given, list) else [given]
    if given is None:
        allowed = next((keys for keys in (OBJECT, ARRAY) if rest <= keys), frozenset())
    else:
        allowed = frozenset[str]().union(*(OF_TYPE.get(str(one), ()) for one in types))
    unknown = sorted(rest - allowed)
    if unknown:
        hint = (
            " without a type that has it" if unknown[0] in OBJECT | ARRAY | NUMBER | STRING else ""
        )
        return f"{where}: {unknown[0]}{hint}"
    for first, others in APART:
        clash = sorted(named & set(others.split()))
        if first in named and clash:
            return f"{where}: {clash[0]} beside {first}"
    return None


def _strings(schema: Schema, where: str) -> str | None:
    if schema.get("format", "uuid") not in FORMATS:
        return f"{where}: format {schema['format']}"
    pattern = str(schema.get("pattern", ""))
    if "(?" in pattern.replace("(?:", ""):
        return f"{where}: a pattern with (?…) that is not (?:…)"
    return None


def _objects(schema: Schema, where: str) -> str | None:
    if "required" in schema:
        missing = [one for one in schema["required"] if one not in schema.get("properties", {})]
        if missing:
            return f"{where}: required {missing[0]}, which is not among its properties"
    return None


def _inside(schema: Schema, where: str) -> str | None:
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        for name, one in schema.get(key, {}).items():
            found = unenforced(one, f"{where}.{name}")
            if found:
                return found
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for at, one in enumerate(schema.get(key, [])):
            found = unenforced(one, f"{where}.{key}[{at}]")
            if found:
                return found
    for key in ("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems"):
        if isinstance(schema.get(key), dict):
            found = unenforced(schema[key], f"{where}.{key}")
            if found:
                return found
    return None


def plainly_disjoint(branches: list[Schema]) -> bool:
    """Whether no document can match two of the schemas, as far as types and values tell."""
    return all(_apart(one, other) for one, other in combinations(branches, 2))


def _apart(one: Schema, other: Schema) -> bool:
    """Whether two schemas differ in type, or in a required property's fixed values."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return False
    types = one.get("type"), other.get("type")
    if None in types or isinstance(types[0], list) or isinstance(types[1], list):
        return False
    if types[0] != types[1]:
        return set(types) != {"integer", "number"}
    shared = set(one.get("required", ())) & set(other.get("required", ()))
    for name in shared:
        values = [_values(schema.get("properties", {}).get(name)) for schema in (one, other)]
        if all(values) and not values[0] & values[1]:
            return True
    return False


def _values(schema: Schema) -> set[str]:
    """The fixed values of a property, as text; empty: it has none."""
    if not isinstance(schema, dict):
        return set()
    fixed = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return {repr(value) for value in fixed}
