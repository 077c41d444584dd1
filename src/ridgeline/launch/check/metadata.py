"""Metadata and label selectors: what the server checks of every object.

Rules of apimachinery `ValidateObjectMeta` and `ValidateLabelSelector`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.launch.check import grammar
from ridgeline.launch.check.verdict import Problems

Object = Mapping[str, Any]
NameRule = Callable[[str], str]

_ANNOTATION_LIMIT_BYTES = 256 * 1024
_OWNER_FIELDS = ("apiVersion", "kind", "name", "uid")
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def section(value: Object, key: str) -> Object:
    """A map below a field; empty where absent or null."""
    found: Object = value.get(key) or {}
    return found


def entries(value: Object, key: str) -> list[Any]:
    """A list of maps below a field; empty where absent; a null entry is an empty one."""
    return [{} if item is None else item for item in value.get(key) or []]


def check_metadata(metadata: Object, path: str, rule: NameRule, problems: Problems) -> None:
    """Name, namespace, labels, annotations, finalizers and owners of one object."""
    name, prefix = metadata.get("name") or "", metadata.get("generateName") or ""
    if prefix:
        problems.invalid(
            f"{path}.generateName",
            prefix,
            rule(prefix[:-1] + "a" if prefix.endswith("-") else prefix),
        )
    if name:
        problems.invalid(f"{path}.name", name, rule(name))
    elif not prefix:
        problems.required(f"{path}.name", "name or generateName is required")
    namespace = metadata.get("namespace")
    if namespace:
        problems.invalid(f"{path}.namespace", namespace, grammar.dns_label(namespace))
    check_labels(section(metadata, "labels"), f"{path}.labels", problems)
    check_annotations(section(metadata, "annotations"), f"{path}.annotations", problems)
    for index, finalizer in enumerate(metadata.get("finalizers") or []):
        problems.invalid(
            f"{path}.finalizers[{index}]", finalizer, grammar.qualified_name(finalizer or "")
        )
    for index, owner in enumerate(entries(metadata, "ownerReferences")):
        for key in _OWNER_FIELDS:
            if not owner.get(key):
                problems.invalid(f"{path}.ownerReferences[{index}].{key}", "", "must not be empty")


def check_labels(labels: Object, path: str, problems: Problems) -> None:
    """Keys and values of labels; the server names the map, not the key."""
    for key, value in labels.items():
        problems.invalid(path, key, grammar.qualified_name(key))
        problems.invalid(path, value, grammar.label_value(value or ""))


def check_annotations(annotations: Object, path: str, problems: Problems) -> None:
    """Keys of annotations, and their size altogether."""
    size = 0
    for key, value in annotations.items():
        size += len(key.encode()) + len((value or "").encode())
        problems.invalid(path, key, grammar.qualified_name(key.lower()))
    if size > _ANNOTATION_LIMIT_BYTES:
        problems.too_long(path, "", _ANNOTATION_LIMIT_BYTES)


def check_selector(selector: Object, path: str, problems: Problems) -> None:
    """A label selector's labels and expressions."""
    check_labels(section(selector, "matchLabels"), f"{path}.matchLabels", problems)
    for index, expression in enumerate(entries(selector, "matchExpressions")):
        at = f"{path}.matchExpressions[{index}]"
        operator, values = expression.get("operator"), expression.get("values") or []
        if operator in ("In", "NotIn") and not values:
            problems.required(f"{at}.values", "must be given when operator is In or NotIn")
        elif operator in ("Exists", "DoesNotExist") and values:
            problems.forbidden(f"{at}.values", "may not be given when operator is Exists")
        elif operator not in _OPERATORS:
            problems.invalid(f"{at}.operator", operator, "not a valid selector operator")
        problems.invalid(
            f"{at}.key", expression.get("key"), grammar.qualified_name(expression.get("key") or "")
        )
        for number, value in enumerate(values):
            if grammar.label_value(value or ""):
                problems.invalid(f"{at}.values[{number}]", value, grammar.label_value(value))


def selects(selector: Object, labels: Object) -> bool:
    """Whether a selector matches a set of labels."""
    for key, value in section(selector, "matchLabels").items():
        if labels.get(key) != value:
            return False
    for expression in entries(selector, "matchExpressions"):
        key, values = expression.get("key"), expression.get("values") or []
        passed = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not passed.get(expression.get("operator", ""), True):
            return False
    return True


def is_empty(selector: Object) -> bool:
    """Whether a selector says nothing."""
    return not (selector.get("matchLabels") or selector.get("matchExpressions"))


def check_choice(
    value: Any,
    allowed: tuple[str, ...],
    path: str,
    problems: Problems,
) -> None:
    """A field with a closed list of values, where given."""
    if value not in (None, "", *allowed):
        problems.unsupported(path, value, allowed)


def check_minimum(value: Any, minimum: int, path: str, problems: Problems) -> None:
    """A number that must not be smaller, where given."""
    if isinstance(value, int) and value < minimum:
        problems.invalid(path, value, f"must be greater than or equal to {minimum}")


def check_name(value: Any, rule: NameRule, path: str, problems: Problems) -> bool:
    """A required name; true when it is fine."""
    wrong = rule(value) if value else ""
    if not value:
        problems.required(path)
    elif wrong:
        problems.invalid(path, value, wrong)
    return bool(value) and not wrong


def check_port(value: Any, path: str, problems: Problems) -> None:
    """A port by number, or by the name of a container's port."""
    if isinstance(value, int | float):
        if not 1 <= value <= 65535:
            problems.invalid(path, value, "must be between 1 and 65535, inclusive")
    elif value is None:
        problems.required(path)
    elif grammar.port_name(value):
        problems.invalid(path, value, grammar.port_name(value))
