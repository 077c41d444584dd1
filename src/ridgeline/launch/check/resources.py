"""Requests and limits of containers (`ValidateResourceRequirements` of Kubernetes 1.36)."""

from __future__ import annotations

from fractions import Fraction

from ridgeline.launch.check import grammar
from ridgeline.launch.check.metadata import Object, section
from ridgeline.launch.check.verdict import Problems
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


def check_resources(resources: Object, path: str, problems: Problems) -> None:
    """Names, amounts and the relation of requests to limits."""
    limits, requests = section(resources, "limits"), section(resources, "requests")
    for name, value in limits.items():
        _check_amount(name, value, f"{path}.limits[{name}]", problems)
    # The server fills in requests with limits.
    for name, value in {**limits, **requests}.items():
        request = _check_amount(name, value, f"{path}.requests[{name}]", problems)
        if name not in limits:
            if not may_overcommit(name):
                problems.add(
                    f"{path}.limits",
                    "Required",
                    f"{name} cannot be overcommitted and has no limit",
                    f"set limits[{name}] to {value}, equal to its request",
                )
            continue
        limit = parse_quantity(limits[name])
        if request is None or limit is None:
            continue
        if request != limit and not may_overcommit(name):
            problems.add(
                f"{path}.requests",
                "Invalid",
                f"{value} must be equal to {name} limit of {limits[name]}",
                f"give {name} the same request and limit",
            )
        elif request > limit:
            problems.add(
                f"{path}.requests",
                "Invalid",
                f"{value} must be less than or equal to {name} limit of {limits[name]}",
                f"lower the request of {name}, or raise its limit",
            )
    named = {*limits, *requests}
    if any(name.startswith("hugepages-") for name in named) and not named & {"cpu", "memory"}:
        problems.forbidden(path, "huge pages require cpu or memory")


def _check_amount(name: str, value: object, path: str, problems: Problems) -> Fraction | None:
    wrong = grammar.qualified_name(name)
    if wrong:
        problems.invalid(path, name, wrong)
    elif "/" not in name and not name.startswith("hugepages-"):
        if name not in _STANDARD:
            problems.invalid(path, name, "must be a standard resource type or fully qualified")
        if name not in _CONTAINER:
            problems.invalid(path, name, "must be a standard resource for containers")
    amount = parse_quantity(value)
    if amount is None:
        return None
    if amount < 0:
        problems.invalid(path, value, "must be greater than or equal to 0")
    if is_extended(name) and amount.denominator != 1:
        problems.invalid(path, value, "must be an integer", "ask for whole devices")
    return amount
