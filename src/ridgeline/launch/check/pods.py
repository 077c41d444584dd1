"""Pod specs and their volumes as the server checks them in code.

`ValidatePodSpec` and `ValidateVolumes` of Kubernetes 1.36, and where pods may go: node
selectors, affinity, tolerations, spreading.
"""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.launch.check import grammar
from ridgeline.launch.check.containers import (
    PodSurroundings,
    check_containers,
    check_local_path,
    check_security,
)
from ridgeline.launch.check.devices import check_claim_references
from ridgeline.launch.check.fields import Fields, section
from ridgeline.launch.check.metadata import check_annotations, check_labels, check_selector
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


def check_template(template: Fields) -> None:
    """Check a pod template: its labels, its annotations and the spec."""
    labels, annotations = (
        # The server leaves `metadata` out of these paths.
        Fields(section(section(template.value, "metadata"), key), template.at(key),
               template.problems)
        for key in ("labels", "annotations")
    )  # fmt: skip
    check_labels(labels)
    check_annotations(annotations)
    spec = template.section("spec")
    check_pod_spec(spec)
    if spec.get("ephemeralContainers"):
        spec.forbidden("ephemeralContainers", "not allowed in pod templates")


def check_pod_spec(spec: Fields) -> None:
    """Everything below the `spec` of a pod."""
    volumes, claims = spec.entries("volumes"), spec.entries("resourceClaims")
    check_volumes(volumes)
    surroundings = PodSurroundings(
        volumes={volume.get("name") for volume in volumes if volume.get("name")},
        claims={claim.value.get("name", "") for claim in claims},
    )
    containers, first = spec.entries("containers"), spec.entries("initContainers")
    if not containers:
        spec.required("containers")
    check_containers(containers, surroundings)
    check_containers(first, surroundings)
    _check_init(first)
    seen: set[str] = set()
    for container in (*containers, *first):
        container.unique("name", seen)
    check_claim_references(claims)
    _check_choices(spec)
    _check_names(spec)
    check_security(spec.section("securityContext"))
    check_scheduling(spec)


def _check_init(containers: list[Fields]) -> None:
    for container in containers:
        if container.get("restartPolicy") == "Always":
            continue
        for key in container.given(
            ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")
        ):
            container.forbidden(key, "may not be set for init containers that end")


def _check_choices(spec: Fields) -> None:
    spec.choice("restartPolicy", RESTART_POLICIES)
    spec.choice("dnsPolicy", _DNS_POLICIES)
    config = spec.section("dnsConfig")
    if spec.get("dnsPolicy") == "None" and not config.get("nameservers"):
        config.required("nameservers", "needed when dnsPolicy is None")
    spec.choice("preemptionPolicy", ("PreemptLowerPriority", "Never"))
    spec.minimum(0, "terminationGracePeriodSeconds")
    spec.minimum(1, "activeDeadlineSeconds")
    system = spec.section("os")
    if spec.get("os") is not None:
        system.need("name")
    system.choice("name", ("linux", "windows"))
    if spec.get("hostNetwork"):
        for container in spec.entries("containers"):
            for port in container.entries("ports"):
                host = port.get("hostPort")
                if host and host != port.get("containerPort"):
                    port.invalid(
                        "containerPort", "must match `hostPort` when `hostNetwork` is true"
                    )


def _check_names(spec: Fields) -> None:
    for key in ("serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"):
        spec.fits(key, grammar.dns_subdomain)
    for key in ("hostname", "subdomain"):
        spec.fits(key, grammar.dns_label)
    seen: set[str] = set()
    for gate in spec.entries("schedulingGates"):
        name = gate.get("name") or ""
        gate.wrong(grammar.qualified_name(name), name)
        if name in seen:
            gate.problems.duplicate(gate.path, name)
        seen.add(name)


def check_volumes(volumes: list[Fields]) -> None:
    """Names and sources of a pod's volumes."""
    seen: set[str] = set()
    for volume in volumes:
        volume.named("name", grammar.dns_label)
        volume.unique("name", seen)
        # A volume without any source is an emptyDir.
        sources = [key for key, value in volume.value.items() if isinstance(value, Mapping)]
        for key in sources[1:]:
            volume.forbidden(key, "may not specify more than 1 volume type")
        for key in sources[:1]:
            _check_source(volume.section(key), key)


def _check_source(source: Fields, kind: str) -> None:
    source.need(*_REQUIRED.get(kind, ()))
    if kind == "hostPath":
        if ".." in (source.get("path") or "").split("/"):
            source.invalid("path", "must not contain '..'")
        source.choice("type", _HOST_PATHS)
    if kind == "emptyDir":
        size = parse_quantity(source.get("sizeLimit"))
        if size is not None and size < 0:
            source.forbidden("sizeLimit", "sizeLimit must not be negative")
    if kind == "projected":
        for projection in source.entries("sources"):
            for key in projection.given(_PROJECTED):
                _check_items(projection.section(key))
            if projection.get("serviceAccountToken") is not None:
                projection.section("serviceAccountToken").need("path")
    if kind in ("secret", "configMap"):
        _check_items(source)
    mode = source.get("defaultMode")
    if mode is not None and not 0 <= mode <= 0o777:
        source.invalid("defaultMode", "must be a number between 0 and 0777 (octal)")


def _check_items(source: Fields) -> None:
    for item in source.entries("items"):
        if "key" in item.value:
            item.need("key")
        item.need("path")
        check_local_path(item, "path")


_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_NODE_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"
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
    if affinity.get(_NODE_TERMS) is not None:
        required = affinity.section(_NODE_TERMS)
        terms = required.entries("nodeSelectorTerms")
        if not terms:
            required.required("nodeSelectorTerms", "must have at least one node selector term")
        for term in terms:
            check_node_term(term)
    for term in affinity.entries(_PREFERRED):
        _check_weight(term)
        check_node_term(term.section("preference"))


def _check_pod_affinity(affinity: Fields) -> None:
    for term in affinity.entries(_NODE_TERMS):
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
