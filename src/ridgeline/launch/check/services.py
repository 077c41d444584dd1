"""Objects around the workloads: Service, storage, configuration, access rights, policies.

Rules of `pkg/apis/{core,rbac,policy,autoscaling,networking,scheduling}/validation` of
Kubernetes 1.36.
"""

from __future__ import annotations

from ridgeline.launch.check import grammar
from ridgeline.launch.check.metadata import (
    Object,
    check_choice,
    check_labels,
    check_minimum,
    check_name,
    check_port,
    check_selector,
    entries,
    section,
)
from ridgeline.launch.check.verdict import Problems
from ridgeline.records.kube_quantity import parse_quantity

_SIZE_LIMIT_BYTES = 1024 * 1024
_ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_SERVICE_TYPES = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
_HIGHEST_USER_PRIORITY = 1_000_000_000
_SECRET_KEYS = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_RBAC_GROUP = "rbac.authorization.k8s.io"


def check_service(manifest: Object, problems: Problems) -> None:
    """Ports, type and selector of a Service."""
    spec = section(manifest, "spec")
    kind, ports = spec.get("type") or "ClusterIP", entries(spec, "ports")
    check_choice(kind, _SERVICE_TYPES, "spec.type", problems)
    if not ports and spec.get("clusterIP") != "None" and kind != "ExternalName":
        problems.required("spec.ports")
    if kind == "ExternalName":
        check_name(
            (spec.get("externalName") or "").rstrip("."),
            grammar.dns_subdomain,
            "spec.externalName",
            problems,
        )
    seen: set[str] = set()
    pairs: set[tuple[object, object]] = set()
    for index, port in enumerate(ports):
        at, name = f"spec.ports[{index}]", port.get("name") or ""
        if len(ports) > 1 and not name:
            problems.required(f"{at}.name", "every port needs a name when there are several")
        if name and grammar.dns_label(name):
            problems.invalid(f"{at}.name", name, grammar.dns_label(name))
        if name and name in seen:
            problems.duplicate(f"{at}.name", name)
        seen.add(name)
        check_port(port.get("port") or 0, f"{at}.port", problems)
        check_choice(port.get("protocol"), ("TCP", "UDP", "SCTP"), f"{at}.protocol", problems)
        if port.get("targetPort"):
            check_port(port["targetPort"], f"{at}.targetPort", problems)
        _check_node_port(port.get("nodePort"), kind, f"{at}.nodePort", problems)
        pair = (port.get("protocol", "TCP"), port.get("port"))
        if pair in pairs:
            problems.duplicate(at, port)
        pairs.add(pair)
    check_labels(section(spec, "selector"), "spec.selector", problems)
    check_choice(
        spec.get("sessionAffinity"), ("ClientIP", "None"), "spec.sessionAffinity", problems
    )


def _check_node_port(port: int | None, kind: str, path: str, problems: Problems) -> None:
    if not port:
        return
    if kind not in ("NodePort", "LoadBalancer"):
        problems.forbidden(path, f"may not be used when `type` is '{kind}'")
    elif not 30000 <= port <= 32767:
        problems.invalid(path, port, "the range of valid ports is 30000-32767")


def check_volume_claim(manifest: Object, problems: Problems) -> None:
    """Access modes and size of a PersistentVolumeClaim."""
    spec = section(manifest, "spec")
    modes = spec.get("accessModes") or []
    if not modes:
        problems.required("spec.accessModes", "at least 1 access mode is required")
    for index, mode in enumerate(modes):
        if mode not in _ACCESS_MODES:
            problems.unsupported(f"spec.accessModes[{index}]", mode, _ACCESS_MODES)
    requests = section(section(spec, "resources"), "requests")
    if "storage" not in requests:
        problems.required("spec.resources[storage]")
    else:
        size = parse_quantity(requests["storage"])
        if size is not None and size <= 0:
            problems.invalid(
                "spec.resources[storage]", requests["storage"], "must be greater than zero"
            )
    check_choice(spec.get("volumeMode"), ("Block", "Filesystem"), "spec.volumeMode", problems)
    storage_class = spec.get("storageClassName")
    if storage_class:
        problems.invalid(
            "spec.storageClassName", storage_class, grammar.dns_subdomain(storage_class)
        )
    if spec.get("selector") is not None:
        check_selector(spec["selector"], "spec.selector", problems)


def check_config_map(manifest: Object, problems: Problems) -> None:
    """Keys and size of a ConfigMap."""
    _check_data(manifest, ("data", "binaryData"), "", problems)


def check_secret(manifest: Object, problems: Problems) -> None:
    """Keys, size and the keys that its type asks for."""
    _check_data(manifest, ("data",), "data", problems)
    given = {**section(manifest, "data"), **section(manifest, "stringData")}
    for key in _SECRET_KEYS.get(manifest.get("type") or "", ()):
        if key not in given:
            problems.required(f"data[{key}]")


def _check_data(
    manifest: Object, sections: tuple[str, ...], total: str, problems: Problems
) -> None:
    size, seen = 0, set()
    for name in sections:
        for key, value in section(manifest, name).items():
            size += len((value or "").encode())
            problems.invalid(f"{name}[{key}]", key, grammar.config_key(key))
            if key in seen:
                problems.invalid(f"{name}[{key}]", key, "duplicate of key present in data")
            seen.add(key)
    if size > _SIZE_LIMIT_BYTES:
        problems.too_long(total, "", _SIZE_LIMIT_BYTES)


def check_role(manifest: Object, problems: Problems) -> None:
    """Rules of a Role."""
    for index, rule in enumerate(entries(manifest, "rules")):
        at = f"rules[{index}]"
        if not rule.get("verbs"):
            problems.required(f"{at}.verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            problems.invalid(
                f"{at}.nonResourceURLs", rule["nonResourceURLs"], "cannot apply to namespaced rules"
            )
            continue
        for key in ("apiGroups", "resources"):
            if not rule.get(key):
                problems.required(f"{at}.{key}", "resource rules must supply at least one")


def check_role_binding(manifest: Object, problems: Problems) -> None:
    """Role and subjects of a RoleBinding."""
    role = section(manifest, "roleRef")
    if (role.get("apiGroup") or _RBAC_GROUP) != _RBAC_GROUP:
        problems.unsupported("roleRef.apiGroup", role["apiGroup"], (_RBAC_GROUP,))
    if role.get("kind") not in ("Role", "ClusterRole"):
        problems.unsupported("roleRef.kind", role.get("kind"), ("Role", "ClusterRole"))
    check_name(role.get("name"), grammar.path_segment, "roleRef.name", problems)
    for index, subject in enumerate(entries(manifest, "subjects")):
        at, kind = f"subjects[{index}]", subject.get("kind")
        if not subject.get("name"):
            problems.required(f"{at}.name")
        elif kind == "ServiceAccount" and grammar.dns_subdomain(subject["name"]):
            problems.invalid(f"{at}.name", subject["name"], grammar.dns_subdomain(subject["name"]))
        if kind not in ("ServiceAccount", "User", "Group"):
            problems.unsupported(f"{at}.kind", kind, ("ServiceAccount", "User", "Group"))
        elif kind == "ServiceAccount":
            if not subject.get("namespace"):
                problems.required(f"{at}.namespace")
            if subject.get("apiGroup"):
                problems.unsupported(f"{at}.apiGroup", subject["apiGroup"], ("",))
        elif (subject.get("apiGroup") or _RBAC_GROUP) != _RBAC_GROUP:
            problems.unsupported(f"{at}.apiGroup", subject["apiGroup"], (_RBAC_GROUP,))


def check_autoscaler(manifest: Object, problems: Problems) -> None:
    """Check the bounds, metrics and target of a HorizontalPodAutoscaler."""
    spec = section(manifest, "spec")
    target = section(spec, "scaleTargetRef")
    for key in ("kind", "name"):
        check_name(target.get(key), grammar.path_segment, f"spec.scaleTargetRef.{key}", problems)
    least = spec.get("minReplicas")
    minimum, maximum = 1 if least is None else least, spec.get("maxReplicas") or 0
    check_minimum(minimum, 1, "spec.minReplicas", problems)
    if maximum < 1:
        problems.invalid("spec.maxReplicas", maximum, "must be greater than 0")
    elif maximum < minimum:
        problems.invalid(
            "spec.maxReplicas", maximum, "must be greater than or equal to `minReplicas`"
        )
    kinds = ("Object", "Pods", "Resource", "ContainerResource", "External")
    for index, metric in enumerate(entries(spec, "metrics")):
        at = f"spec.metrics[{index}]"
        if not metric.get("type"):
            problems.required(f"{at}.type", "must specify a metric source type")
        check_choice(metric.get("type"), kinds, f"{at}.type", problems)
        source = metric.get("type", "")[:1].lower() + metric.get("type", "")[1:]
        if metric.get("type") in kinds and not metric.get(source):
            problems.required(f"{at}.{source}", "must populate information for the given source")


def check_disruption_budget(manifest: Object, problems: Problems) -> None:
    """Check that a PodDisruptionBudget has one bound, and a selector."""
    spec = section(manifest, "spec")
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        problems.invalid("spec", "", "minAvailable and maxUnavailable cannot be both set")
    for key in ("minAvailable", "maxUnavailable"):
        value = spec.get(key)
        check_minimum(value, 0, f"spec.{key}", problems)
        if isinstance(value, str) and not (value.endswith("%") and value[:-1].isdigit()):
            problems.invalid(f"spec.{key}", value, "must be an integer or a percentage ('50%')")
    check_selector(section(spec, "selector"), "spec.selector", problems)
    check_choice(
        spec.get("unhealthyPodEvictionPolicy"),
        ("IfHealthyBudget", "AlwaysAllow"),
        "spec.unhealthyPodEvictionPolicy",
        problems,
    )


def check_network_policy(manifest: Object, problems: Problems) -> None:
    """Check the selectors and ports of a NetworkPolicy."""
    spec = section(manifest, "spec")
    check_selector(section(spec, "podSelector"), "spec.podSelector", problems)
    for index, kind in enumerate(spec.get("policyTypes") or []):
        check_choice(kind, ("Ingress", "Egress"), f"spec.policyTypes[{index}]", problems)
    for side, peers in (("ingress", "from"), ("egress", "to")):
        for index, rule in enumerate(entries(spec, side)):
            at = f"spec.{side}[{index}]"
            for number, port in enumerate(entries(rule, "ports")):
                if port.get("port") is not None:
                    check_port(port["port"], f"{at}.ports[{number}].port", problems)
                check_choice(
                    port.get("protocol"),
                    ("TCP", "UDP", "SCTP"),
                    f"{at}.ports[{number}].protocol",
                    problems,
                )
            for number, peer in enumerate(entries(rule, peers)):
                here = f"{at}.{peers}[{number}]"
                if not any(v is not None for v in peer.values()):
                    problems.required(here, "must specify a peer")
                for key in ("podSelector", "namespaceSelector"):
                    check_selector(section(peer, key), f"{here}.{key}", problems)


def check_priority_class(manifest: Object, problems: Problems) -> None:
    """A PriorityClass of a user."""
    value, name = manifest.get("value") or 0, section(manifest, "metadata").get("name") or ""
    if name.startswith("system-"):
        problems.forbidden("metadata.name", "names that begin with system- are reserved")
    elif value > _HIGHEST_USER_PRIORITY:
        problems.forbidden("value", f"maximum allowed value is {_HIGHEST_USER_PRIORITY}")
    check_choice(
        manifest.get("preemptionPolicy"),
        ("PreemptLowerPriority", "Never"),
        "preemptionPolicy",
        problems,
    )


def check_quota(manifest: Object, problems: Problems) -> None:
    """Check the names and amounts of a ResourceQuota."""
    for key, value in section(section(manifest, "spec"), "hard").items():
        at = f"spec.hard[{key}]"
        problems.invalid(at, key, grammar.qualified_name(key))
        amount = parse_quantity(value)
        if amount is not None and amount < 0:
            problems.invalid(at, value, "must be greater than or equal to 0")


def check_limit_range(manifest: Object, problems: Problems) -> None:
    """Check a LimitRange, where min ≤ default request ≤ default ≤ max."""
    for index, limit in enumerate(entries(section(manifest, "spec"), "limits")):
        at = f"spec.limits[{index}]"
        if not limit.get("type"):
            problems.required(f"{at}.type")
        order = ("min", "defaultRequest", "default", "max")
        for name in {key for part in order for key in section(limit, part)}:
            last, last_part = None, ""
            for part in order:
                amount = (
                    parse_quantity(section(limit, part).get(name))
                    if (name in section(limit, part))
                    else None
                )
                if amount is None:
                    continue
                if last is not None and last > amount:
                    problems.invalid(
                        f"{at}.{last_part}[{name}]",
                        section(limit, last_part)[name],
                        f"{last_part} value is greater than {part} value",
                    )
                last, last_part = amount, part
