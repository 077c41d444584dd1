"""Devices and gangs as the server checks them.

resource.k8s.io/v1 (DRA) and scheduling.k8s.io/v1alpha2 (Kubernetes 1.36).
"""

from __future__ import annotations

from ridgeline.launch.check import grammar
from ridgeline.launch.check.fields import Fields
from ridgeline.launch.check.metadata import check_labels

_REQUEST_LIMIT = 32
_TEMPLATE_LIMIT = 8


def check_claim(manifest: Fields) -> None:
    """Check the devices that a ResourceClaim asks for."""
    _check_devices(manifest.section("spec", "devices"))


def check_claim_template(manifest: Fields) -> None:
    """Check a ResourceClaimTemplate, which has a claim inside."""
    check_labels(manifest.section("spec", "metadata", "labels"))
    _check_devices(manifest.section("spec", "spec", "devices"))


def check_device_class(manifest: Fields) -> None:
    """Check what selects the devices of a DeviceClass."""
    _check_selectors(manifest.section("spec"))


def _check_devices(devices: Fields) -> None:
    requests = devices.entries("requests")
    if len(requests) > _REQUEST_LIMIT:
        message = f"at most {_REQUEST_LIMIT} requests"
        devices.problems.add(devices.at("requests"), "TooMany", message, "remove some")
    known: set[str] = set()
    for request in requests:
        request.named("name", grammar.dns_label)
        request.unique("name", known)
        exactly, choices = request.get("exactly"), request.entries("firstAvailable")
        if exactly is None and not choices:
            request.problems.required(
                request.path, "exactly one of `exactly` or `firstAvailable` is required"
            )
        elif exactly is not None and choices:
            request.wrong("exactly one of `exactly` or `firstAvailable` is allowed")
        if exactly is not None:
            _check_request(request.section("exactly"))
        for choice in choices:
            choice.named("name", grammar.dns_label)
            known.add(f"{request.get('name')}/{choice.get('name')}")
            _check_request(choice)
    for part in ("constraints", "config"):
        for entry in devices.entries(part):
            for number, name in enumerate(entry.get("requests") or []):
                if name not in known:
                    entry.invalid(
                        f"requests[{number}]", "must be the name of a request in the claim",
                        value=name,
                    )  # fmt: skip


def _check_request(request: Fields) -> None:
    request.named("deviceClassName", grammar.dns_subdomain)
    _check_selectors(request)
    mode, count = request.get("allocationMode") or "ExactCount", request.get("count")
    if mode == "ExactCount":
        if count is not None and count <= 0:
            request.invalid("count", "must be greater than zero")
    elif mode == "All":
        if count:
            request.invalid("count", "must not be specified when mode is 'All'")
    else:
        request.choice("allocationMode", ("All", "ExactCount"))


def _check_selectors(holder: Fields) -> None:
    for selector in holder.entries("selectors"):
        if selector.get("cel") is None:
            selector.required("cel")
        else:
            selector.section("cel").need("expression")


def check_workload(manifest: Fields) -> None:
    """A Workload of Kubernetes' own gang scheduling."""
    spec = manifest.section("spec")
    if spec.get("controllerRef") is not None:
        controller = spec.section("controllerRef")
        for key in ("kind", "name"):
            controller.named(key, grammar.path_segment)
        controller.fits("apiGroup", grammar.dns_subdomain)
    templates = spec.entries("podGroupTemplates")
    if not templates:
        spec.required("podGroupTemplates", "must have at least one item")
    if len(templates) > _TEMPLATE_LIMIT:
        message = f"at most {_TEMPLATE_LIMIT}"
        spec.problems.add("spec.podGroupTemplates", "TooMany", message, "remove some")
    seen: set[str] = set()
    for template in templates:
        name = template.get("name")
        template.named("name", grammar.dns_label)
        if name and name in seen:
            template.problems.duplicate(template.path, {"name": name})
        seen.add(name or "")
        _check_group(template)


def check_pod_group(manifest: Fields) -> None:
    """A PodGroup of Kubernetes' own gang scheduling."""
    spec = manifest.section("spec")
    _check_group(spec)
    template = spec.section("podGroupTemplateRef", "workload")
    if template.value:
        template.named("workloadName", grammar.dns_subdomain)
        template.named("podGroupTemplateName", grammar.dns_label)


def _check_group(group: Fields) -> None:
    """What a PodGroup and a template of one have in common."""
    _check_policy(group.section("schedulingPolicy"))
    group.fits("priorityClassName", grammar.dns_subdomain)
    group.choice("disruptionMode", ("Pod", "PodGroup"))
    check_claim_references(group.entries("resourceClaims"))
    for level in group.section("schedulingConstraints").entries("topology"):
        level.named("key", grammar.qualified_name)


def check_claim_references(claims: list[Fields]) -> None:
    """Claims that a pod or a group of pods refers to: by name, or by template."""
    seen: set[str] = set()
    for claim in claims:
        claim.named("name", grammar.dns_label)
        claim.unique("name", seen)
        sources = [k for k in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(k)]
        if len(sources) != 1:
            claim.wrong(
                "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
                claim.get("name"),
            )
        for key in sources:
            claim.fits(key, grammar.dns_subdomain)


def _check_policy(policy: Fields) -> None:
    given = policy.given(("basic", "gang"))
    if len(given) != 1:
        policy.wrong("must specify one of: `basic`, `gang`")
    if "gang" in given:
        gang = policy.section("gang")
        if gang.get("minCount") is None:
            gang.required("minCount")
        gang.minimum(1, "minCount")
