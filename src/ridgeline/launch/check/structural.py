"""Custom resources against their structural schema, in the server's order.

Unknown fields (pruning under strict field validation), then nulls and defaults, then types,
patterns, ranges, enumerations and list types, then CEL rules (KEP-1693, KEP-2876).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from ridgeline.launch.check import cel
from ridgeline.launch.check.decode import A_QUANTITY, unknown_field
from ridgeline.launch.check.verdict import WHOLE_OBJECT, Problems, filled_in, shown

Schema = Mapping[str, Any]

_ROOT_FIELDS = ("apiVersion", "kind", "metadata")
_BLOCKING = frozenset({"NotSupported", "Required", "TooLong", "TooMany", "TypeInvalid"})
_QUANTITY = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)"
"""How the pattern begins that controller-gen writes for a quantity."""
_RANGES = {"int32": 2**31, "int64": 2**63}


def schema_problems(value: Mapping[str, Any], schema: Schema) -> Problems:
    """What the server's schema machinery says about an object of a custom kind."""
    unknown = Problems()
    body = {key: item for key, item in value.items() if key not in _ROOT_FIELDS}
    _unknown_fields(body, schema, "", unknown)
    if unknown.found:
        return unknown
    filled = with_defaults(body, schema)
    problems = Problems()
    for key in ("apiVersion", "kind", "metadata"):
        filled[key] = value.get(key)
    _validate(filled, schema, "", problems)
    if not any(problem.reason in _BLOCKING for problem in problems.found):
        _rules(filled, schema, "", problems)
    return problems


def with_defaults(value: Any, schema: Schema | None) -> Any:
    """A copy without nulls that the schema does not allow, and with its defaults filled in."""
    if schema is None:
        return value
    if isinstance(value, list):
        return [with_defaults(item, schema.get("items")) for item in value]
    if not isinstance(value, Mapping):
        return value
    properties = schema.get("properties", {})
    filled: dict[str, Any] = {}
    for key, item in value.items():
        below = properties.get(key) or _additional(schema)
        if item is None and below is not None and not below.get("nullable"):
            continue
        filled[key] = with_defaults(item, below)
    for key, below in properties.items():
        if key not in filled and "default" in below:
            filled[key] = with_defaults(below["default"], below)
    return filled


def _unknown_fields(value: Any, schema: Schema | None, path: str, problems: Problems) -> None:
    if schema is not None and schema.get("x-kubernetes-preserve-unknown-fields"):
        for key, below in schema.get("properties", {}).items():
            if isinstance(value, Mapping) and key in value:
                _unknown_fields(value[key], below, _join(path, key), problems)
        return
    if isinstance(value, list):
        for index, item in enumerate(value):
            items = schema.get("items") if schema is not None else None
            _unknown_fields(item, items, f"{path}[{index}]", problems)
    elif isinstance(value, Mapping):
        properties: Mapping[str, Any] = schema.get("properties", {}) if schema is not None else {}
        embedded = schema is not None and schema.get("x-kubernetes-embedded-resource")
        for key, item in value.items():
            if embedded and key in _ROOT_FIELDS:
                continue
            if key in properties:
                _unknown_fields(item, properties[key], _join(path, key), problems)
            elif schema is not None and schema.get("additionalProperties"):
                _unknown_fields(item, _additional(schema), _join(path, key), problems)
            else:
                unknown_field(problems, _join(path, key), properties)


def _additional(schema: Schema) -> Schema | None:
    additional = schema.get("additionalProperties")
    return additional if isinstance(additional, Mapping) else None


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _validate(value: Any, schema: Schema, path: str, problems: Problems) -> None:
    if value is None and schema.get("nullable"):
        return
    if schema.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, str) or _is_integer(value)
        expected = "" if fits else "an integer or a string"
    else:
        expected = _expected_type(value, schema.get("type"))
    if expected:
        problems.add(
            path,
            "TypeInvalid",
            f"{shown(value)} must be {expected}",
            filled_in(value)
            or f"write {expected}" + (", in quotes" if expected == "a string" else ""),
        )
        return
    if "enum" in schema and value not in schema["enum"]:
        problems.unsupported(path, value, tuple(str(v) for v in schema["enum"]))
    if isinstance(value, str):
        _validate_string(value, schema, path, problems)
    elif isinstance(value, list):
        _validate_list(value, schema, path, problems)
    elif isinstance(value, Mapping):
        _validate_object(value, schema, path, problems)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _validate_number(value, schema, path, problems)


def _expected_type(value: Any, kind: str | None) -> str:
    fits, expected = {
        "string": (isinstance(value, str), "a string"),
        "integer": (_is_integer(value), "an integer"),
        "number": (isinstance(value, int | float) and not isinstance(value, bool), "a number"),
        "boolean": (isinstance(value, bool), "true or false"),
        "array": (isinstance(value, list), "a list"),
        "object": (isinstance(value, Mapping), "a map of fields"),
        None: (True, ""),
    }[kind]
    return "" if fits else expected


def _is_integer(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _validate_string(value: str, schema: Schema, path: str, problems: Problems) -> None:
    if len(value) > schema.get("maxLength", len(value)):
        problems.too_long(path, value, schema["maxLength"])
    if len(value) < schema.get("minLength", 0):
        problems.invalid(path, value, f"must be at least {schema['minLength']} characters long")
    _validate_pattern(value, schema.get("pattern"), path, problems)
    if schema.get("format") == "date-time" and not re.match(r"\d{4}-\d\d-\d\d[Tt ]", value):
        problems.invalid(path, value, "must be a time as in RFC 3339")


def _validate_pattern(value: str, pattern: str | None, path: str, problems: Problems) -> None:
    try:
        if not pattern or _compiled(pattern).search(value):
            return
    except re.error as error:
        problems.not_judged(path, f"its pattern {pattern!r}: {error}")
        return
    expected = f"be {A_QUANTITY}" if pattern.startswith(_QUANTITY) else f"match {pattern}"
    problems.invalid(path, value, f"must {expected}")


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # Go's dialect: flags hold from where they stand, and `$` is the end of the text alone.
    flags = re.search(r"\(\?([ims]+)\)", pattern)
    if flags:
        pattern = f"{pattern[: flags.start()]}(?{flags[1]}:{pattern[flags.end() :]})"
    return re.compile(re.sub(r"(?<!\\)\$(?=\)?$)", r"\\Z", pattern))


def _validate_number(value: float, schema: Schema, path: str, problems: Problems) -> None:
    limit = _RANGES.get(schema.get("format", ""))
    if limit is not None and not -limit <= value < limit:
        problems.invalid(path, value, f"does not fit into {schema['format']}")
    minimum, maximum = schema.get("minimum"), schema.get("maximum")
    if minimum is not None and (
        value < minimum or (schema.get("exclusiveMinimum") and value == minimum)
    ):
        problems.invalid(path, value, f"must be greater than or equal to {minimum}")
    if maximum is not None and (
        value > maximum or (schema.get("exclusiveMaximum") and value == maximum)
    ):
        problems.invalid(path, value, f"must be less than or equal to {maximum}")


def _validate_list(value: Sequence[Any], schema: Schema, path: str, problems: Problems) -> None:
    if len(value) > schema.get("maxItems", len(value)):
        problems.add(
            path,
            "TooMany",
            f"{len(value)} entries, at most {schema['maxItems']} are allowed",
            "remove some",
        )
    if len(value) < schema.get("minItems", 0):
        problems.invalid(path, len(value), f"must have at least {schema['minItems']} entries")
    items = schema.get("items", {})
    for index, item in enumerate(value):
        _validate(item, items, f"{path}[{index}]", problems)
    for index in _repeated(value, schema):
        keys = schema.get("x-kubernetes-list-map-keys")
        item = {key: value[index].get(key) for key in keys} if keys else value[index]
        problems.duplicate(f"{path}[{index}]", item)


def _repeated(value: Sequence[Any], schema: Schema) -> Iterator[int]:
    """Indices of entries that repeat an earlier one in a list that is a set or a map."""
    kind = schema.get("x-kubernetes-list-type")
    if kind == "set":
        keys = [repr(item) for item in value]
    elif kind == "map" and all(isinstance(item, Mapping) for item in value):
        names = schema["x-kubernetes-list-map-keys"]
        keys = [repr([item.get(name) for name in names]) for item in value]
    else:
        return
    seen = set()
    for index, key in enumerate(keys):
        if key in seen:
            yield index
        seen.add(key)


def _validate_object(
    value: Mapping[str, Any],
    schema: Schema,
    path: str,
    problems: Problems,
) -> None:
    if len(value) > schema.get("maxProperties", len(value)):
        problems.add(
            path,
            "TooMany",
            f"{len(value)} entries, at most {schema['maxProperties']} are allowed",
            "remove some",
        )
    if len(value) < schema.get("minProperties", 0):
        problems.invalid(path, len(value), f"must have at least {schema['minProperties']} entries")
    for key in schema.get("required", ()):
        if key not in value:
            problems.required(_join(path, key))
    properties, additional = schema.get("properties", {}), _additional(schema)
    for key, item in value.items():
        if not path and key in _ROOT_FIELDS:
            continue
        below = properties.get(key, additional)
        if below is not None:
            _validate(item, below, _join(path, key), problems)


def _rules(value: Any, schema: Schema, path: str, problems: Problems) -> None:
    if value is None:
        return
    for rule in schema.get("x-kubernetes-validations", ()):
        try:
            expression = cel.compiled(rule["rule"])
        except cel.UnsupportedExpression as error:
            problems.not_judged(path, f"its rule {' '.join(rule['rule'].split())!r}: {error}")
            continue
        # Rules about a change do not apply to a new object.
        if expression.uses_old and not rule.get("optionalOldSelf"):
            continue
        message = rule.get("message") or f"failed rule: {' '.join(rule['rule'].split())}"
        field = (path + str(rule.get("fieldPath", ""))) or WHOLE_OBJECT
        try:
            passed = expression.evaluate({"self": value})
        except cel.EvaluationError as error:
            problems.invalid(field, value, f"{error} evaluating rule: {message}", message)
            continue
        if passed is not True:
            reason = str(rule.get("reason", "FieldValueInvalid")).removeprefix("FieldValue")
            problems.add(field, reason, message, f"make it so: {message}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            _rules(item, schema.get("items", {}), f"{path}[{index}]", problems)
    elif isinstance(value, Mapping):
        properties, additional = schema.get("properties", {}), _additional(schema)
        for key, item in value.items():
            below = properties.get(key, additional)
            if below is not None:
                _rules(item, below, _join(path, key), problems)
