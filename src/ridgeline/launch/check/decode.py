"""Reads a core object as the server's Go types would: wrong types first, then unknown fields.

The server decodes into Go structs with `fieldValidation=Strict`. A value of the wrong JSON type
ends the request; otherwise every field that no struct has is named. Null means "not given".
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from ridgeline.launch.check.catalogue import core_definitions
from ridgeline.launch.check.verdict import Problems, filled_in, shown
from ridgeline.records.kube_quantity import parse_quantity

UNKNOWN_FIELD = "unknown field"
A_QUANTITY = "a quantity such as 2, 500m or 16Gi"

_METADATA = "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_QUANTITY = "#/definitions/io.k8s.apimachinery.pkg.api.resource.Quantity"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_RANGES = {"int32": 2**31, "int64": 2**63}
_NAMES = {"string": "a string", "integer": "an integer", "boolean": "true or false"}


def decode_problems(
    value: Mapping[str, Any], schema: Mapping[str, Any], path: str = ""
) -> Problems:
    """What the decoder says about an object of a core kind, or about a part that stands at path."""
    types, unknown = Problems(), Problems()
    _decode(value, schema, path, (types, unknown))
    return types if types.found else unknown


def metadata_problems(manifest: Mapping[str, Any]) -> Problems:
    """What the decoder says about an object's metadata, which is the same for every kind."""
    schema = {"properties": {"metadata": {"$ref": _METADATA}}}
    return decode_problems({"metadata": manifest.get("metadata")}, schema)


def unknown_field(problems: Problems, field: str, known: Mapping[str, Any]) -> None:
    """Name a field that the schema does not have, with the nearest that it has."""
    import difflib

    name = field.rpartition(".")[2]
    near = difflib.get_close_matches(name, list(known), n=1)
    cure = f"did you mean {near[0]}?" if near else "remove it, or correct the indentation"
    problems.add(field, UNKNOWN_FIELD, "this kind of object has no such field", cure)


def _decode(
    value: Any,
    schema: Mapping[str, Any],
    path: str,
    found: tuple[Problems, Problems],
) -> None:
    if value is None:
        return
    reference = schema.get("$ref")
    if reference == _QUANTITY:
        if parse_quantity(value) is None:
            _wrong(found, path, value, A_QUANTITY)
        return
    if reference:
        schema = core_definitions()[reference]
    kind = schema.get("type")
    if kind == "array":
        if not isinstance(value, list):
            _wrong(found, path, value, "a list")
            return
        for index, item in enumerate(value):
            _decode(item, schema["items"], f"{path}[{index}]", found)
    elif "properties" in schema:
        _decode_struct(value, schema["properties"], path, found)
    elif kind == "object" and "additionalProperties" in schema:
        if not isinstance(value, Mapping):
            _wrong(found, path, value, "a map")
            return
        for key, item in value.items():
            _decode(item, schema["additionalProperties"], f"{path}[{key}]", found)
    elif kind != "object" and kind is not None:
        expected = _expected_scalar(value, schema)
        if expected:
            _wrong(found, path, value, expected)


def _decode_struct(
    value: Any,
    properties: Mapping[str, Any],
    path: str,
    found: tuple[Problems, Problems],
) -> None:
    if not isinstance(value, Mapping):
        _wrong(found, path, value, "a map of fields")
        return
    for key, item in value.items():
        below = f"{path}.{key}" if path else str(key)
        if key in properties:
            _decode(item, properties[key], below, found)
        else:
            unknown_field(found[1], below, properties)


def _expected_scalar(value: Any, schema: Mapping[str, Any]) -> str:
    """What was expected in place of a scalar, or nothing when it fits."""
    kind, form = schema["type"], schema.get("format")
    if form == "int-or-string":
        fits = isinstance(value, str | int) and not isinstance(value, bool)
        return "" if fits else "an integer or a string"
    if kind == "string":
        return _expected_string(value, form)
    if kind == "boolean":
        return "" if isinstance(value, bool) else _NAMES[kind]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "number":
        return "" if number else "a number"
    if not number or isinstance(value, float):
        return _NAMES["integer"]
    limit = _RANGES.get(form or "int64", 2**63)
    return "" if -limit <= value < limit else f"an integer of {form}"


def _expected_string(value: Any, form: str | None) -> str:
    if not isinstance(value, str):
        return _NAMES["string"]
    if form == "date-time" and value and not _TIME.fullmatch(value):
        return "a time as in RFC 3339"
    if form == "byte":
        try:
            base64.b64decode(value.replace("\n", "").replace("\r", ""), validate=True)
        except (binascii.Error, ValueError):
            return "base64"
    return ""


def _wrong(found: tuple[Problems, Problems], path: str, value: Any, expected: str) -> None:
    found[0].add(
        path,
        "TypeInvalid",
        f"{shown(value)} is {_kind_of(value)}, expected {expected}",
        filled_in(value) or f"write {expected}" + (", in quotes" if expected == "a string" else ""),
    )


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "a map"
