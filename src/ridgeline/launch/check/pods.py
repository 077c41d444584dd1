"""Pod specs as the server checks them in code (`ValidatePodSpec` of Kubernetes 1.36)."""

from __future__ import annotations

from ridgeline.launch.check import names
from ridgeline.launch.check.containers import (
    Surroundings,
    check_containers,
    check_security,
    check_unique_names,
)
from ridgeline.launch.check.devices import check_claim_references
from ridgeline.launch.check.metadata import (
    Object,
    check_annotations,
    check_choice,
    check_labels,
    check_minimum,
    entries,
    section,
)
from ridgeline.launch.check.scheduling import check_scheduling
from ridgeline.launch.check.verdict import Problems
from ridgeline.launch.check.volumes import check_volumes

RESTART_POLICIES = ("Always", "OnFailure", "Never")
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")


def check_template(template: Object, path: str, problems: Problems) -> None:
    """A pod template: labels, annotations and the spec."""
    metadata = section(template, "metadata")
    check_labels(section(metadata, "labels"), f"{path}.labels", problems)
    check_annotations(section(metadata, "annotations"), f"{path}.annotations", problems)
    check_pod_spec(section(template, "spec"), f"{path}.spec", problems)
    if section(template, "spec").get("ephemeralContainers"):
        problems.forbidden(f"{path}.spec.ephemeralContainers", "not allowed in pod templates")


def check_pod_spec(spec: Object, path: str, problems: Problems) -> None:
    """Everything below the `spec` of a pod."""
    volumes, claims = entries(spec, "volumes"), entries(spec, "resourceClaims")
    check_volumes(volumes, f"{path}.volumes", problems)
    surroundings = Surroundings(
        volumes={volume.get("name", "") for volume in volumes if volume.get("name")},
        claims={claim.get("name", "") for claim in claims},
    )
    containers, first = entries(spec, "containers"), entries(spec, "initContainers")
    if not containers:
        problems.required(f"{path}.containers")
    check_containers(containers, f"{path}.containers", surroundings, problems)
    check_containers(first, f"{path}.initContainers", surroundings, problems)
    _check_init(first, f"{path}.initContainers", problems)
    check_unique_names(
        ((f"{path}.containers", containers), (f"{path}.initContainers", first)), problems
    )
    check_claim_references(claims, f"{path}.resourceClaims", problems)
    _check_choices(spec, path, problems)
    _check_names(spec, path, problems)
    check_security(section(spec, "securityContext"), f"{path}.securityContext", problems)
    check_scheduling(spec, path, problems)


def _check_init(containers: list[Object], path: str, problems: Problems) -> None:
    for index, container in enumerate(containers):
        if container.get("restartPolicy") == "Always":
            continue
        for key in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
            if container.get(key) is not None:
                problems.forbidden(
                    f"{path}[{index}].{key}", "may not be set for init containers that end"
                )


def _check_choices(spec: Object, path: str, problems: Problems) -> None:
    check_choice(spec.get("restartPolicy"), RESTART_POLICIES, f"{path}.restartPolicy", problems)
    check_choice(spec.get("dnsPolicy"), _DNS_POLICIES, f"{path}.dnsPolicy", problems)
    if spec.get("dnsPolicy") == "None" and not section(spec, "dnsConfig").get("nameservers"):
        problems.required(f"{path}.dnsConfig.nameservers", "needed when dnsPolicy is None")
    check_choice(
        spec.get("preemptionPolicy"),
        ("PreemptLowerPriority", "Never"),
        f"{path}.preemptionPolicy",
        problems,
    )
    check_minimum(
        spec.get("terminationGracePeriodSeconds"),
        0,
        f"{path}.terminationGracePeriodSeconds",
        problems,
    )
    check_minimum(spec.get("activeDeadlineSeconds"), 1, f"{path}.activeDeadlineSeconds", problems)
    system = section(spec, "os").get("name")
    if spec.get("os") is not None and not system:
        problems.required(f"{path}.os.name")
    check_choice(system, ("linux", "windows"), f"{path}.os.name", problems)
    if spec.get("hostNetwork"):
        for index, container in enumerate(entries(spec, "containers")):
            for number, port in enumerate(entries(container, "ports")):
                host = port.get("hostPort")
                if host and host != port.get("containerPort"):
                    problems.invalid(
                        f"{path}.containers[{index}].ports[{number}].containerPort",
                        port.get("containerPort"),
                        "must match `hostPort` when `hostNetwork` is true",
                    )


def _check_names(spec: Object, path: str, problems: Problems) -> None:
    for key in ("serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"):
        value = spec.get(key)
        if value and names.dns_subdomain(value):
            problems.invalid(f"{path}.{key}", value, names.dns_subdomain(value))
    for key in ("hostname", "subdomain"):
        value = spec.get(key)
        if value and names.dns_label(value):
            problems.invalid(f"{path}.{key}", value, names.dns_label(value))
    seen: set[str] = set()
    for index, gate in enumerate(entries(spec, "schedulingGates")):
        name = gate.get("name") or ""
        if names.qualified_name(name):
            problems.invalid(f"{path}.schedulingGates[{index}]", name, names.qualified_name(name))
        if name in seen:
            problems.duplicate(f"{path}.schedulingGates[{index}]", name)
        seen.add(name)
