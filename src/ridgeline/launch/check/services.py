"""Objects around the workloads: Service, storage, configuration, access rights, policies.

Rules of `pkg/apis/{core,rbac,policy,autoscaling,networking,scheduling}/validation` of
Kubernetes 1.36.
"""

from __future__ import annotations

from ridgeline.launch.check import grammar
from ridgeline.launch.check.fields import Fields, section
from ridgeline.launch.check.metadata import check_labels, check_selector
from ridgeline.records.kube_quantity import parse_quantity

_SIZE_LIMIT_BYTES = 1024 * 1024
_ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_SERVICE_TYPES = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_HIGHEST_USER_PRIORITY = 1_000_000_000
_SECRET_KEYS = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_RBAC_GROUP = "rbac.authorization.k8s.io"


def check_service(manifest: Fields) -> None:
    """Ports, type and selector of a Service."""
    spec = manifest.section("spec")
    kind, ports = spec.get("type") or "ClusterIP", spec.entries("ports")
    spec.choice("type", _SERVICE_TYPES)
    if not ports and spec.get("clusterIP") != "None" and kind != "ExternalName":
        spec.required("ports")
    if kind == "ExternalName":
        name = (spec.get("externalName") or "").rstrip(".")
        if name:
            spec.invalid("externalName", grammar.dns_subdomain(name), value=name)
        else:
            spec.required("externalName")
    seen: set[str] = set()
    pairs: set[tuple[object, object]] = set()
    for port in ports:
        if len(ports) > 1 and not port.get("name"):
            port.required("name", "every port needs a name when there are several")
        port.fits("name", grammar.dns_label)
        port.unique("name", seen)
        port.port("port", port.get("port") or 0)
        port.choice("protocol", _PROTOCOLS)
        if port.get("targetPort"):
            port.port("targetPort")
        _check_node_port(port, kind)
        pair = (port.value.get("protocol", "TCP"), port.get("port"))
        if pair in pairs:
            port.problems.duplicate(port.path, port.value)
        pairs.add(pair)
    check_labels(spec.section("selector"))
    spec.choice("sessionAffinity", ("ClientIP", "None"))


def _check_node_port(port: Fields, kind: str) -> None:
    number = port.get("nodePort")
    if not number:
        return
    if kind not in ("NodePort", "LoadBalancer"):
        port.forbidden("nodePort", f"may not be used when `type` is '{kind}'")
    elif not 30000 <= number <= 32767:
        port.invalid("nodePort", "the range of valid ports is 30000-32767")


def check_volume_claim(manifest: Fields) -> None:
    """Access modes and size of a PersistentVolumeClaim."""
    spec = manifest.section("spec")
    modes = spec.get("accessModes") or []
    if not modes:
        spec.required("accessModes", "at least 1 access mode is required")
    for index, mode in enumerate(modes):
        if mode not in _ACCESS_MODES:
            spec.problems.unsupported(spec.at(f"accessModes[{index}]"), mode, _ACCESS_MODES)
    requests = spec.section("resources", "requests")
    if "storage" not in requests.value:
        spec.required("resources[storage]")
    else:
        asked = requests.get("storage")
        size = parse_quantity(asked)
        if size is not None and size <= 0:
            spec.invalid("resources[storage]", "must be greater than zero", value=asked)
    spec.choice("volumeMode", ("Block", "Filesystem"))
    spec.fits("storageClassName", grammar.dns_subdomain)
    check_selector(spec.section("selector"))


def check_config_map(manifest: Fields) -> None:
    """Keys and size of a ConfigMap."""
    _check_data(manifest, ("data", "binaryData"), "")


def check_secret(manifest: Fields) -> None:
    """Keys, size and the keys that its type asks for."""
    _check_data(manifest, ("data",), "data")
    given = {**section(manifest.value, "data"), **section(manifest.value, "stringData")}
    for key in _SECRET_KEYS.get(manifest.get("type") or "", ()):
        if key not in given:
            manifest.required(f"data[{key}]")


def _check_data(manifest: Fields, sections: tuple[str, ...], total: str) -> None:
    size, seen = 0, set()
    for name in sections:
        for key, value in section(manifest.value, name).items():
            size += len((value or "").encode())
            manifest.invalid(f"{name}[{key}]", grammar.config_key(key), value=key)
            if key in seen:
                manifest.invalid(f"{name}[{key}]", "duplicate of key present in data", value=key)
            seen.add(key)
    if size > _SIZE_LIMIT_BYTES:
        manifest.problems.too_long(total, "", _SIZE_LIMIT_BYTES)


def check_role(manifest: Fields) -> None:
    """Rules of a Role."""
    for rule in manifest.entries("rules"):
        if not rule.get("verbs"):
            rule.required("verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            rule.invalid("nonResourceURLs", "cannot apply to namespaced rules")
            continue
        for key in ("apiGroups", "resources"):
            if not rule.get(key):
                rule.required(key, "resource rules must supply at least one")


def check_role_binding(manifest: Fields) -> None:
    """Role and subjects of a RoleBinding."""
    role = manifest.section("roleRef")
    role.choice("apiGroup", (_RBAC_GROUP,))
    if role.get("kind") not in ("Role", "ClusterRole"):
        role.unsupported("kind", ("Role", "ClusterRole"))
    role.named("name", grammar.path_segment)
    for subject in manifest.entries("subjects"):
        kind = subject.get("kind")
        subject.need("name")
        if kind == "ServiceAccount":
            subject.fits("name", grammar.dns_subdomain)
        if kind not in ("ServiceAccount", "User", "Group"):
            subject.unsupported("kind", ("ServiceAccount", "User", "Group"))
        elif kind == "ServiceAccount":
            subject.need("namespace")
            subject.choice("apiGroup", ("",))
        else:
            subject.choice("apiGroup", (_RBAC_GROUP,))


def check_autoscaler(manifest: Fields) -> None:
    """Check the bounds, metrics and target of a HorizontalPodAutoscaler."""
    spec = manifest.section("spec")
    target = spec.section("scaleTargetRef")
    for key in ("kind", "name"):
        target.named(key, grammar.path_segment)
    least = spec.get("minReplicas")
    minimum, maximum = 1 if least is None else least, spec.get("maxReplicas") or 0
    spec.minimum(1, "minReplicas")
    if maximum < 1:
        spec.invalid("maxReplicas", "must be greater than 0", value=maximum)
    elif maximum < minimum:
        spec.invalid("maxReplicas", "must be greater than or equal to `minReplicas`")
    kinds = ("Object", "Pods", "Resource", "ContainerResource", "External")
    for metric in spec.entries("metrics"):
        kind = metric.get("type") or ""
        if not kind:
            metric.required("type", "must specify a metric source type")
        metric.choice("type", kinds)
        source = kind[:1].lower() + kind[1:]
        if kind in kinds and not metric.get(source):
            metric.required(source, "must populate information for the given source")


def check_disruption_budget(manifest: Fields) -> None:
    """Check that a PodDisruptionBudget has one bound, and a selector."""
    spec = manifest.section("spec")
    if len(spec.given(("minAvailable", "maxUnavailable"))) == 2:
        spec.wrong("minAvailable and maxUnavailable cannot be both set")
    for key in ("minAvailable", "maxUnavailable"):
        value = spec.get(key)
        spec.minimum(0, key)
        if isinstance(value, str) and not (value.endswith("%") and value[:-1].isdigit()):
            spec.invalid(key, "must be an integer or a percentage ('50%')")
    check_selector(spec.section("selector"))
    spec.choice("unhealthyPodEvictionPolicy", ("IfHealthyBudget", "AlwaysAllow"))


def check_network_policy(manifest: Fields) -> None:
    """Check the selectors and ports of a NetworkPolicy."""
    spec = manifest.section("spec")
    check_selector(spec.section("podSelector"))
    for index, kind in enumerate(spec.get("policyTypes") or []):
        if kind not in (None, "", "Ingress", "Egress"):
            path = spec.at(f"policyTypes[{index}]")
            spec.problems.unsupported(path, kind, ("Ingress", "Egress"))
    for side, peers in (("ingress", "from"), ("egress", "to")):
        for rule in spec.entries(side):
            for port in rule.entries("ports"):
                if port.get("port") is not None:
                    port.port("port")
                port.choice("protocol", _PROTOCOLS)
            for peer in rule.entries(peers):
                if not any(one is not None for one in peer.value.values()):
                    peer.problems.required(peer.path, "must specify a peer")
                for key in ("podSelector", "namespaceSelector"):
                    check_selector(peer.section(key))


def check_priority_class(manifest: Fields) -> None:
    """A PriorityClass of a user."""
    value, metadata = manifest.get("value") or 0, manifest.section("metadata")
    if (metadata.get("name") or "").startswith("system-"):
        metadata.forbidden("name", "names that begin with system- are reserved")
    elif value > _HIGHEST_USER_PRIORITY:
        manifest.forbidden("value", f"maximum allowed value is {_HIGHEST_USER_PRIORITY}")
    manifest.choice("preemptionPolicy", ("PreemptLowerPriority", "Never"))


def check_quota(manifest: Fields) -> None:
    """Check the names and amounts of a ResourceQuota."""
    spec = manifest.section("spec")
    for key, value in section(spec.value, "hard").items():
        spec.invalid(f"hard[{key}]", grammar.qualified_name(key), value=key)
        amount = parse_quantity(value)
        if amount is not None and amount < 0:
            spec.invalid(f"hard[{key}]", "must be greater than or equal to 0", value=value)


def check_limit_range(manifest: Fields) -> None:
    """Check a LimitRange, where min ≤ default request ≤ default ≤ max."""
    for limit in manifest.section("spec").entries("limits"):
        limit.need("type")
        given = {
            part: section(limit.value, part) for part in ("min", "defaultRequest", "default", "max")
        }
        for name in {key for amounts in given.values() for key in amounts}:
            last, last_part = None, ""
            for part, amounts in given.items():
                amount = parse_quantity(amounts[name]) if name in amounts else None
                if amount is None:
                    continue
                if last is not None and last > amount:
                    limit.invalid(
                        f"{last_part}[{name}]",
                        f"{last_part} value is greater than {part} value",
                        value=given[last_part][name],
                    )
                last, last_part = amount, part
