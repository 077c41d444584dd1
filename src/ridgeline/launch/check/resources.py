"""Requests and limits of containers (`ValidateResourceRequirements` of Kubernetes 1.36)."""

from __future__ import annotations

from fractions import Fraction

from ridgeline.launch.check import grammar
from ridgeline.launch.check.fields import Fields, section
from ridgeline.records.kube_quantity import parse_quantity

_CONTAINER = frozenset({"cpu", "memory", "ephemeral-storage"})
_STANDARD = (
    _CONTAINER
    | {
        f"{prefix}{name}"
        for prefix in ("", "requests.", "limits.")
        for name in ("cpu", "memory", "ephemeral-storage", "storage")
    }
    | {"pods", "services", "secrets", "configmaps", "replicationcontrollers", "resourcequotas"}
)


def is_extended(resource: str) -> bool:
    """Whether a resource is one of a device plugin, such as nvidia.com/gpu."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and "kubernetes.io" not in domain


def may_overcommit(resource: str) -> bool:
    """Whether requests may be smaller than limits."""
    return not is_extended(resource) and not resource.startswith("hugepages-")


def check_resources(resources: Fields) -> None:
    """Names, amounts and the relation of requests to limits."""
    asked, add = resources.at("requests"), resources.problems.add
    limits, requests = section(resources.value, "limits"), section(resources.value, "requests")
    for name, value in limits.items():
        _check_amount(name, value, f"limits[{name}]", resources)
    # The server fills in requests with limits.
    for name, value in {**limits, **requests}.items():
        request = _check_amount(name, value, f"requests[{name}]", resources)
        if name not in limits:
            if not may_overcommit(name):
                add(
                    resources.at("limits"),
                    "Required",
                    f"{name} cannot be overcommitted and has no limit",
                    f"set limits[{name}] to {value}, equal to its request",
                )
            continue
        limit = parse_quantity(limits[name])
        if request is None or limit is None:
            continue
        if request != limit and not may_overcommit(name):
            message = f"{value} must be equal to {name} limit of {limits[name]}"
            add(asked, "Invalid", message, f"give {name} the same request and limit")
        elif request > limit:
            message = f"{value} must be less than or equal to {name} limit of {limits[name]}"
            add(asked, "Invalid", message, f"lower the request of {name}, or raise its limit")
    named = {*limits, *requests}
    if any(name.startswith("hugepages-") for name in named) and not named & {"cpu", "memory"}:
        resources.problems.forbidden(resources.path, "huge pages require cpu or memory")


def _check_amount(name: str, value: object, key: str, resources: Fields) -> Fraction | None:
    wrong = grammar.qualified_name(name)
    if wrong:
        resources.invalid(key, wrong, value=name)
    elif "/" not in name and not name.startswith("hugepages-"):
        if name not in _STANDARD:
            message = "must be a standard resource type or fully qualified"
            resources.invalid(key, message, value=name)
        if name not in _CONTAINER:
            resources.invalid(key, "must be a standard resource for containers", value=name)
    amount = parse_quantity(value)
    if amount is None:
        return None
    if amount < 0:
        resources.invalid(key, "must be greater than or equal to 0", value=value)
    if is_extended(name) and amount.denominator != 1:
        resources.invalid(key, "must be an integer", "ask for whole devices", value=value)
    return amount
