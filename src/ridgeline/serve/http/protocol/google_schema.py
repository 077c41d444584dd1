"""Schemas as Google's clients write them, in JSON Schema's words.

Types stand in capitals, what may be null says so beside its type, and counts are texts.
"""

from __future__ import annotations

from typing import Any

_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")


def as_json_schema(given: Any) -> Any:
    """A schema in JSON Schema's words.

    >>> as_json_schema({"type": "ARRAY", "items": {"type": "STRING", "nullable": True}})
    {'type': 'array', 'items': {'type': ['string', 'null']}}
    """
    if isinstance(given, list):
        return [as_json_schema(one) for one in given]
    if not isinstance(given, dict):
        return given
    found: dict[str, Any] = {}
    for name, value in given.items():
        match name:
            case "type" if isinstance(value, str):
                kind = value.lower()
                found[name] = [kind, "null"] if given.get("nullable") is True else kind
            case "properties" if isinstance(value, dict):
                found[name] = {key: as_json_schema(one) for key, one in value.items()}
            case "nullable" | "propertyOrdering" | "property_ordering":
                pass
            case "enum" | "required" | "default" | "example":
                found[name] = value
            case "any_of":
                found["anyOf"] = as_json_schema(value)
            case _ if name in _COUNTS and isinstance(value, str) and value.isdigit():
                found[name] = int(value)
            case _:
                found[name] = as_json_schema(value)
    return found
