"""Devices and gangs as the server checks them.

resource.k8s.io/v1 (DRA) and scheduling.k8s.io/v1alpha2 (Kubernetes 1.36).
"""

from __future__ import annotations

from ridgeline.launch.check import grammar
from ridgeline.launch.check.metadata import (
    Object,
    check_choice,
    check_labels,
    check_minimum,
    check_name,
    entries,
    section,
)
from ridgeline.launch.check.verdict import Problems

_REQUEST_LIMIT = 32
_TEMPLATE_LIMIT = 8


def check_claim(manifest: Object, problems: Problems) -> None:
    """Check the devices that a ResourceClaim asks for."""
    _check_devices(section(section(manifest, "spec"), "devices"), "spec.devices", problems)


def check_claim_template(manifest: Object, problems: Problems) -> None:
    """Check a ResourceClaimTemplate, which has a claim inside."""
    template = section(manifest, "spec")
    labels = section(section(template, "metadata"), "labels")
    check_labels(labels, "spec.metadata.labels", problems)
    devices = section(section(template, "spec"), "devices")
    _check_devices(devices, "spec.spec.devices", problems)


def check_device_class(manifest: Object, problems: Problems) -> None:
    """Check what selects the devices of a DeviceClass."""
    _check_selectors(section(manifest, "spec"), "spec", problems)


def _check_devices(devices: Object, path: str, problems: Problems) -> None:
    requests = entries(devices, "requests")
    if len(requests) > _REQUEST_LIMIT:
        problems.add(
            f"{path}.requests", "TooMany", f"at most {_REQUEST_LIMIT} requests", "remove some"
        )
    known: set[str] = set()
    for index, request in enumerate(requests):
        at, name = f"{path}.requests[{index}]", request.get("name")
        check_name(name, grammar.dns_label, f"{at}.name", problems)
        if name and name in known:
            problems.duplicate(f"{at}.name", name)
        known.add(name or "")
        exactly, choices = request.get("exactly"), entries(request, "firstAvailable")
        if exactly is None and not choices:
            problems.required(at, "exactly one of `exactly` or `firstAvailable` is required")
        elif exactly is not None and choices:
            problems.invalid(at, "", "exactly one of `exactly` or `firstAvailable` is allowed")
        if exactly is not None:
            _check_request(exactly, f"{at}.exactly", problems)
        for number, choice in enumerate(choices):
            here = f"{at}.firstAvailable[{number}]"
            check_name(choice.get("name"), grammar.dns_label, f"{here}.name", problems)
            known.add(f"{name}/{choice.get('name')}")
            _check_request(choice, here, problems)
    for part in ("constraints", "config"):
        for index, entry in enumerate(entries(devices, part)):
            for number, name in enumerate(entry.get("requests") or []):
                if name not in known:
                    problems.invalid(
                        f"{path}.{part}[{index}].requests[{number}]",
                        name,
                        "must be the name of a request in the claim",
                    )


def _check_request(request: Object, path: str, problems: Problems) -> None:
    check_name(
        request.get("deviceClassName"), grammar.dns_subdomain, f"{path}.deviceClassName", problems
    )
    _check_selectors(request, path, problems)
    mode, count = request.get("allocationMode") or "ExactCount", request.get("count")
    if mode == "ExactCount":
        if count is not None and count <= 0:
            problems.invalid(f"{path}.count", count, "must be greater than zero")
    elif mode == "All":
        if count:
            problems.invalid(f"{path}.count", count, "must not be specified when mode is 'All'")
    else:
        check_choice(mode, ("All", "ExactCount"), f"{path}.allocationMode", problems)


def _check_selectors(holder: Object, path: str, problems: Problems) -> None:
    for index, selector in enumerate(entries(holder, "selectors")):
        at = f"{path}.selectors[{index}]"
        if selector.get("cel") is None:
            problems.required(f"{at}.cel")
        elif not selector["cel"].get("expression"):
            problems.required(f"{at}.cel.expression")


def check_workload(manifest: Object, problems: Problems) -> None:
    """A Workload of Kubernetes' own gang scheduling."""
    spec = section(manifest, "spec")
    controller = spec.get("controllerRef")
    if controller is not None:
        for key in ("kind", "name"):
            check_name(
                controller.get(key), grammar.path_segment, f"spec.controllerRef.{key}", problems
            )
        group = controller.get("apiGroup")
        if group:
            problems.invalid("spec.controllerRef.apiGroup", group, grammar.dns_subdomain(group))
    templates = entries(spec, "podGroupTemplates")
    if not templates:
        problems.required("spec.podGroupTemplates", "must have at least one item")
    if len(templates) > _TEMPLATE_LIMIT:
        problems.add(
            "spec.podGroupTemplates", "TooMany", f"at most {_TEMPLATE_LIMIT}", "remove some"
        )
    seen: set[str] = set()
    for index, template in enumerate(templates):
        at, name = f"spec.podGroupTemplates[{index}]", template.get("name")
        check_name(name, grammar.dns_label, f"{at}.name", problems)
        if name and name in seen:
            problems.duplicate(at, {"name": name})
        seen.add(name or "")
        _check_group(template, at, problems)


def check_pod_group(manifest: Object, problems: Problems) -> None:
    """A PodGroup of Kubernetes' own gang scheduling."""
    spec = section(manifest, "spec")
    _check_group(spec, "spec", problems)
    template = section(section(spec, "podGroupTemplateRef"), "workload")
    if template:
        at = "spec.podGroupTemplateRef.workload"
        check_name(
            template.get("workloadName"), grammar.dns_subdomain, f"{at}.workloadName", problems
        )
        check_name(
            template.get("podGroupTemplateName"),
            grammar.dns_label,
            f"{at}.podGroupTemplateName",
            problems,
        )


def _check_group(group: Object, path: str, problems: Problems) -> None:
    """What a PodGroup and a template of one have in common."""
    _check_policy(section(group, "schedulingPolicy"), f"{path}.schedulingPolicy", problems)
    priority = group.get("priorityClassName")
    if priority and grammar.dns_subdomain(priority):
        problems.invalid(f"{path}.priorityClassName", priority, grammar.dns_subdomain(priority))
    check_choice(
        group.get("disruptionMode"), ("Pod", "PodGroup"), f"{path}.disruptionMode", problems
    )
    check_claim_references(entries(group, "resourceClaims"), f"{path}.resourceClaims", problems)
    for index, level in enumerate(entries(section(group, "schedulingConstraints"), "topology")):
        at = f"{path}.schedulingConstraints.topology[{index}].key"
        check_name(level.get("key"), grammar.qualified_name, at, problems)


def check_claim_references(claims: list[Object], path: str, problems: Problems) -> None:
    """Claims that a pod or a group of pods refers to: by name, or by template."""
    seen: set[str] = set()
    for index, claim in enumerate(claims):
        at, name = f"{path}[{index}]", claim.get("name")
        check_name(name, grammar.dns_label, f"{at}.name", problems)
        if name and name in seen:
            problems.duplicate(f"{at}.name", name)
        seen.add(name or "")
        sources = [k for k in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(k)]
        if len(sources) != 1:
            problems.invalid(
                at, name, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            )
        for key in sources:
            check_name(claim[key], grammar.dns_subdomain, f"{at}.{key}", problems)


def _check_policy(policy: Object, path: str, problems: Problems) -> None:
    given = [key for key in ("basic", "gang") if policy.get(key) is not None]
    if len(given) != 1:
        problems.invalid(path, "", "must specify one of: `basic`, `gang`")
    if "gang" in given:
        least = policy["gang"].get("minCount")
        if least is None:
            problems.required(f"{path}.gang.minCount")
        check_minimum(least, 1, f"{path}.gang.minCount", problems)
