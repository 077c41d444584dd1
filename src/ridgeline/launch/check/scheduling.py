"""Where pods may go: node selectors, affinity, tolerations, spreading (Kubernetes 1.36)."""

from __future__ import annotations

from ridgeline.launch.check import grammar
from ridgeline.launch.check.fields import Fields
from ridgeline.launch.check.metadata import check_labels, check_selector

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_WHEN = ("DoNotSchedule", "ScheduleAnyway")


def check_scheduling(spec: Fields) -> None:
    """All scheduling fields of a pod's spec."""
    check_labels(spec.section("nodeSelector"))
    for toleration in spec.entries("tolerations"):
        _check_toleration(toleration)
    _check_node_affinity(spec.section("affinity", "nodeAffinity"))
    for key in ("podAffinity", "podAntiAffinity"):
        _check_pod_affinity(spec.section("affinity", key))
    _check_spreading(spec)


def _check_toleration(toleration: Fields) -> None:
    """Key, operator and effect of a toleration."""
    operator = toleration.get("operator")
    toleration.fits("key", grammar.qualified_name)
    if not toleration.get("key") and operator != "Exists":
        toleration.invalid("operator", "must be Exists when `key` is empty")
    timed = toleration.get("tolerationSeconds") is not None
    if timed and toleration.get("effect") != "NoExecute":
        toleration.invalid("effect", "must be 'NoExecute' when `tolerationSeconds` is set")
    value = toleration.get("value")
    if operator == "Exists" and value:
        toleration.invalid("operator", "value must be empty with Exists")
    elif operator in (None, "", "Equal"):
        toleration.invalid("operator", grammar.label_value(value or ""), value=value)
    toleration.choice("operator", ("Equal", "Exists"))
    toleration.choice("effect", _EFFECTS)


def check_node_term(term: Fields) -> None:
    """One term of a node selector."""
    for expression in term.entries("matchExpressions"):
        operator, values = expression.get("operator"), expression.get("values") or []
        if operator in ("In", "NotIn") and not values:
            expression.required("values", "must be given when operator is In or NotIn")
        elif operator in ("Exists", "DoesNotExist") and values:
            expression.forbidden("values", "may not be given when operator is Exists")
        elif operator in ("Gt", "Lt") and len(values) != 1:
            expression.required("values", "must be a single value for Gt or Lt")
        elif operator not in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"):
            expression.invalid("operator", "not a valid selector operator")
        key = expression.get("key") or ""
        expression.invalid("key", grammar.qualified_name(key), value=key)


def _check_node_affinity(affinity: Fields) -> None:
    if affinity.get(_REQUIRED) is not None:
        required = affinity.section(_REQUIRED)
        terms = required.entries("nodeSelectorTerms")
        if not terms:
            required.required("nodeSelectorTerms", "must have at least one node selector term")
        for term in terms:
            check_node_term(term)
    for term in affinity.entries(_PREFERRED):
        _check_weight(term)
        check_node_term(term.section("preference"))


def _check_pod_affinity(affinity: Fields) -> None:
    for term in affinity.entries(_REQUIRED):
        _check_pod_term(term)
    for term in affinity.entries(_PREFERRED):
        _check_weight(term)
        _check_pod_term(term.section("podAffinityTerm"))


def _check_pod_term(term: Fields) -> None:
    for key in ("labelSelector", "namespaceSelector"):
        check_selector(term.section(key))
    term.named("topologyKey", grammar.qualified_name)


def _check_weight(term: Fields) -> None:
    weight = term.get("weight") or 0
    if not 1 <= weight <= 100:
        term.invalid("weight", "must be in the range 1-100", value=weight)


def _check_spreading(spec: Fields) -> None:
    seen: set[tuple[object, object]] = set()
    for constraint in spec.entries("topologySpreadConstraints"):
        if (constraint.get("maxSkew") or 0) <= 0:
            constraint.invalid("maxSkew", "must be greater than zero")
        constraint.named("topologyKey", grammar.qualified_name)
        if not constraint.get("whenUnsatisfiable"):
            constraint.unsupported("whenUnsatisfiable", _WHEN)
        constraint.choice("whenUnsatisfiable", _WHEN)
        pair = (constraint.get("topologyKey"), constraint.get("whenUnsatisfiable"))
        if pair in seen:
            constraint.problems.duplicate(constraint.at("{topologyKey, whenUnsatisfiable}"), pair)
        seen.add(pair)
        check_selector(constraint.section("labelSelector"))
