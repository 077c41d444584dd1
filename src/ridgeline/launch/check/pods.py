"""Pod specs and their volumes as the server checks them in code.

`ValidatePodSpec` and `ValidateVolumes` of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.launch.check import grammar
from ridgeline.launch.check.containers import (
    PodSurroundings,
    check_containers,
    check_local_path,
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
    check_name,
    entries,
    section,
)
from ridgeline.launch.check.scheduling import check_scheduling
from ridgeline.launch.check.verdict import Problems
from ridgeline.records.kube_quantity import parse_quantity

_HOST_PATHS = (
    "DirectoryOrCreate",
    "Directory",
    "FileOrCreate",
    "File",
    "Socket",
    "CharDevice",
    "BlockDevice",
)
_REQUIRED = {
    "secret": ("secretName",),
    "configMap": ("name",),
    "persistentVolumeClaim": ("claimName",),
    "hostPath": ("path",),
    "nfs": ("server", "path"),
    "csi": ("driver",),
    "iscsi": ("targetPortal", "iqn"),
}
"""Kind of volume → the fields without which it names nothing."""

_PROJECTED = ("secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle")
RESTART_POLICIES = ("Always", "OnFailure", "Never")
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")


def check_template(template: Object, path: str, problems: Problems) -> None:
    """Check a pod template: its labels, its annotations and the spec."""
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
    surroundings = PodSurroundings(
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
        if value and grammar.dns_subdomain(value):
            problems.invalid(f"{path}.{key}", value, grammar.dns_subdomain(value))
    for key in ("hostname", "subdomain"):
        value = spec.get(key)
        if value and grammar.dns_label(value):
            problems.invalid(f"{path}.{key}", value, grammar.dns_label(value))
    seen: set[str] = set()
    for index, gate in enumerate(entries(spec, "schedulingGates")):
        name = gate.get("name") or ""
        problems.invalid(f"{path}.schedulingGates[{index}]", name, grammar.qualified_name(name))
        if name in seen:
            problems.duplicate(f"{path}.schedulingGates[{index}]", name)
        seen.add(name)


def check_volumes(volumes: list[Object], path: str, problems: Problems) -> None:
    """Names and sources of a pod's volumes."""
    seen: set[str] = set()
    for index, volume in enumerate(volumes):
        at, name = f"{path}[{index}]", volume.get("name")
        check_name(name, grammar.dns_label, f"{at}.name", problems)
        if name and name in seen:
            problems.duplicate(f"{at}.name", name)
        seen.add(name or "")
        # A volume without any source is an emptyDir.
        sources = [key for key in volume if isinstance(volume[key], Mapping)]
        for key in sources[1:]:
            problems.forbidden(f"{at}.{key}", "may not specify more than 1 volume type")
        for key in sources[:1]:
            _check_source(volume[key], key, f"{at}.{key}", problems)


def _check_source(source: Object, kind: str, path: str, problems: Problems) -> None:
    for key in _REQUIRED.get(kind, ()):
        if not source.get(key):
            problems.required(f"{path}.{key}")
    if kind == "hostPath":
        if ".." in (source.get("path") or "").split("/"):
            problems.invalid(f"{path}.path", source["path"], "must not contain '..'")
        check_choice(source.get("type"), _HOST_PATHS, f"{path}.type", problems)
    if kind == "emptyDir":
        size = parse_quantity(source.get("sizeLimit"))
        if size is not None and size < 0:
            problems.forbidden(f"{path}.sizeLimit", "sizeLimit must not be negative")
    if kind == "projected":
        for index, projection in enumerate(entries(source, "sources")):
            at = f"{path}.sources[{index}]"
            for key in _PROJECTED:
                if projection.get(key) is not None:
                    _check_items(projection[key], f"{at}.{key}", problems)
            token = projection.get("serviceAccountToken")
            if token is not None and not token.get("path"):
                problems.required(f"{at}.serviceAccountToken.path")
    if kind in ("secret", "configMap"):
        _check_items(source, path, problems)
    mode = source.get("defaultMode")
    if mode is not None and not 0 <= mode <= 0o777:
        problems.invalid(f"{path}.defaultMode", mode, "must be a number between 0 and 0777 (octal)")


def _check_items(source: Object, path: str, problems: Problems) -> None:
    for index, item in enumerate(entries(source, "items")):
        at = f"{path}.items[{index}]"
        if "key" in item and not item["key"]:
            problems.required(f"{at}.key")
        if not item.get("path"):
            problems.required(f"{at}.path")
        check_local_path(item.get("path"), f"{at}.path", problems)
