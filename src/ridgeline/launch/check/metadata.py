"""Metadata and label selectors: what the server checks of every object.

Rules of apimachinery `ValidateObjectMeta` and `ValidateLabelSelector`.
"""

from __future__ import annotations

from ridgeline.launch.check import grammar
from ridgeline.launch.check.fields import Fields, NameRule, Object, entries, section

_ANNOTATION_LIMIT_BYTES = 256 * 1024
_OWNER_FIELDS = ("apiVersion", "kind", "name", "uid")
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def check_metadata(metadata: Fields, rule: NameRule) -> None:
    """Name, namespace, labels, annotations, finalizers and owners of one object."""
    name, prefix = metadata.get("name") or "", metadata.get("generateName") or ""
    if prefix:
        tried = prefix[:-1] + "a" if prefix.endswith("-") else prefix
        metadata.invalid("generateName", rule(tried))
    if name:
        metadata.invalid("name", rule(name))
    elif not prefix:
        metadata.required("name", "name or generateName is required")
    metadata.fits("namespace", grammar.dns_label)
    check_labels(metadata.section("labels"))
    check_annotations(metadata.section("annotations"))
    for index, finalizer in enumerate(metadata.get("finalizers") or []):
        wrong = grammar.qualified_name(finalizer or "")
        metadata.invalid(f"finalizers[{index}]", wrong, value=finalizer)
    for owner in metadata.entries("ownerReferences"):
        for key in _OWNER_FIELDS:
            if not owner.get(key):
                owner.invalid(key, "must not be empty", value="")


def check_labels(labels: Fields) -> None:
    """Keys and values of labels; the server names the map, not the key."""
    for key, value in labels.value.items():
        labels.wrong(grammar.qualified_name(key), key)
        labels.wrong(grammar.label_value(value or ""), value)


def check_annotations(annotations: Fields) -> None:
    """Keys of annotations, and their size altogether."""
    size = 0
    for key, value in annotations.value.items():
        size += len(key.encode()) + len((value or "").encode())
        annotations.wrong(grammar.qualified_name(key.lower()), key)
    if size > _ANNOTATION_LIMIT_BYTES:
        annotations.problems.too_long(annotations.path, "", _ANNOTATION_LIMIT_BYTES)


def check_selector(selector: Fields) -> None:
    """A label selector's labels and expressions."""
    check_labels(selector.section("matchLabels"))
    for expression in selector.entries("matchExpressions"):
        operator, values = expression.get("operator"), expression.get("values") or []
        if operator in ("In", "NotIn") and not values:
            expression.required("values", "must be given when operator is In or NotIn")
        elif operator in ("Exists", "DoesNotExist") and values:
            expression.forbidden("values", "may not be given when operator is Exists")
        elif operator not in _OPERATORS:
            expression.invalid("operator", "not a valid selector operator")
        expression.invalid("key", grammar.qualified_name(expression.get("key") or ""))
        for number, value in enumerate(values):
            wrong = grammar.label_value(value or "")
            expression.invalid(f"values[{number}]", wrong, value=value)


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
