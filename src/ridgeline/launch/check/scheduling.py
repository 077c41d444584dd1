"""Where pods may go: node selectors, affinity, tolerations, spreading (Kubernetes 1.36)."""

from __future__ import annotations

from ridgeline.launch.check import grammar
from ridgeline.launch.check.metadata import (
    Object,
    check_choice,
    check_labels,
    check_name,
    check_selector,
    entries,
    section,
)
from ridgeline.launch.check.verdict import Problems

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def check_scheduling(spec: Object, path: str, problems: Problems) -> None:
    """All scheduling fields of a pod's spec."""
    check_labels(section(spec, "nodeSelector"), f"{path}.nodeSelector", problems)
    check_tolerations(entries(spec, "tolerations"), f"{path}.tolerations", problems)
    affinity = section(spec, "affinity")
    _check_node_affinity(
        section(affinity, "nodeAffinity"), f"{path}.affinity.nodeAffinity", problems
    )
    for key in ("podAffinity", "podAntiAffinity"):
        _check_pod_affinity(section(affinity, key), f"{path}.affinity.{key}", problems)
    _check_spreading(spec, f"{path}.topologySpreadConstraints", problems)


def check_tolerations(tolerations: list[Object], path: str, problems: Problems) -> None:
    """Keys, operators and effects of tolerations."""
    for index, toleration in enumerate(tolerations):
        at, key, operator = f"{path}[{index}]", toleration.get("key"), toleration.get("operator")
        if key and grammar.qualified_name(key):
            problems.invalid(f"{at}.key", key, grammar.qualified_name(key))
        if not key and operator != "Exists":
            problems.invalid(f"{at}.operator", operator, "must be Exists when `key` is empty")
        if toleration.get("tolerationSeconds") is not None and (
            toleration.get("effect") != "NoExecute"
        ):
            problems.invalid(
                f"{at}.effect",
                toleration.get("effect"),
                "must be 'NoExecute' when `tolerationSeconds` is set",
            )
        if operator == "Exists" and toleration.get("value"):
            problems.invalid(f"{at}.operator", operator, "value must be empty with Exists")
        elif operator in (None, "", "Equal") and grammar.label_value(toleration.get("value") or ""):
            problems.invalid(
                f"{at}.operator", toleration["value"], grammar.label_value(toleration["value"])
            )
        check_choice(operator, ("Equal", "Exists"), f"{at}.operator", problems)
        check_choice(toleration.get("effect"), _EFFECTS, f"{at}.effect", problems)


def check_node_term(term: Object, path: str, problems: Problems) -> None:
    """One term of a node selector."""
    for index, expression in enumerate(entries(term, "matchExpressions")):
        at, operator = f"{path}.matchExpressions[{index}]", expression.get("operator")
        values = expression.get("values") or []
        if operator in ("In", "NotIn") and not values:
            problems.required(f"{at}.values", "must be given when operator is In or NotIn")
        elif operator in ("Exists", "DoesNotExist") and values:
            problems.forbidden(f"{at}.values", "may not be given when operator is Exists")
        elif operator in ("Gt", "Lt") and len(values) != 1:
            problems.required(f"{at}.values", "must be a single value for Gt or Lt")
        elif operator not in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"):
            problems.invalid(f"{at}.operator", operator, "not a valid selector operator")
        key = expression.get("key") or ""
        problems.invalid(f"{at}.key", key, grammar.qualified_name(key))


def _check_node_affinity(affinity: Object, path: str, problems: Problems) -> None:
    required = affinity.get(_REQUIRED)
    if required is not None:
        at = f"{path}.{_REQUIRED}.nodeSelectorTerms"
        terms = entries(required, "nodeSelectorTerms")
        if not terms:
            problems.required(at, "must have at least one node selector term")
        for index, term in enumerate(terms):
            check_node_term(term, f"{at}[{index}]", problems)
    for index, term in enumerate(entries(affinity, _PREFERRED)):
        at = f"{path}.{_PREFERRED}[{index}]"
        _check_weight(term, at, problems)
        check_node_term(section(term, "preference"), f"{at}.preference", problems)


def _check_pod_affinity(affinity: Object, path: str, problems: Problems) -> None:
    for index, term in enumerate(entries(affinity, _REQUIRED)):
        _check_pod_term(term, f"{path}.{_REQUIRED}[{index}]", problems)
    for index, term in enumerate(entries(affinity, _PREFERRED)):
        at = f"{path}.{_PREFERRED}[{index}]"
        _check_weight(term, at, problems)
        _check_pod_term(section(term, "podAffinityTerm"), f"{at}.podAffinityTerm", problems)


def _check_pod_term(term: Object, path: str, problems: Problems) -> None:
    for key in ("labelSelector", "namespaceSelector"):
        check_selector(section(term, key), f"{path}.{key}", problems)
    check_name(term.get("topologyKey"), grammar.qualified_name, f"{path}.topologyKey", problems)


def _check_weight(term: Object, path: str, problems: Problems) -> None:
    weight = term.get("weight") or 0
    if not 1 <= weight <= 100:
        problems.invalid(f"{path}.weight", weight, "must be in the range 1-100")


def _check_spreading(spec: Object, path: str, problems: Problems) -> None:
    seen: set[tuple[object, object]] = set()
    for index, constraint in enumerate(entries(spec, "topologySpreadConstraints")):
        at = f"{path}[{index}]"
        if (constraint.get("maxSkew") or 0) <= 0:
            problems.invalid(
                f"{at}.maxSkew", constraint.get("maxSkew"), "must be greater than zero"
            )
        check_name(
            constraint.get("topologyKey"), grammar.qualified_name, f"{at}.topologyKey", problems
        )
        when = constraint.get("whenUnsatisfiable")
        if not when:
            problems.unsupported(
                f"{at}.whenUnsatisfiable", when, ("DoNotSchedule", "ScheduleAnyway")
            )
        check_choice(when, ("DoNotSchedule", "ScheduleAnyway"), f"{at}.whenUnsatisfiable", problems)
        pair = (constraint.get("topologyKey"), when)
        if pair in seen:
            problems.duplicate(f"{at}.{{topologyKey, whenUnsatisfiable}}", pair)
        seen.add(pair)
        check_selector(section(constraint, "labelSelector"), f"{at}.labelSelector", problems)
