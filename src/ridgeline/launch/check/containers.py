"""Containers as the server checks them in code, their requests and limits among them.

`validateContainers` and `ValidateResourceRequirements` of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction

from ridgeline.launch.check import grammar
from ridgeline.launch.check.fields import Fields, section
from ridgeline.records.kube_quantity import parse_quantity

_PROTOCOLS = ("TCP", "UDP", "SCTP")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_FIELD_PATHS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_ENV_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")


@dataclass(frozen=True, slots=True)
class PodSurroundings:
    """What a container may refer to in its pod."""

    volumes: Collection[str]
    claims: Collection[str]


def check_containers(containers: list[Fields], surroundings: PodSurroundings) -> None:
    """All containers of one list."""
    host_ports: set[tuple[object, ...]] = set()
    for container in containers:
        _check_container(container, surroundings)
        for port in container.entries("ports"):
            number = port.get("hostPort")
            key = (port.value.get("protocol", "TCP"), port.get("hostIP"), number)
            if number and key in host_ports:
                port.problems.duplicate(port.at("hostPort"), number)
            host_ports.add(key)


def _check_container(container: Fields, surroundings: PodSurroundings) -> None:
    container.named("name", grammar.dns_label)
    container.need("image")
    container.choice("imagePullPolicy", _PULL_POLICIES)
    container.choice("terminationMessagePolicy", _MESSAGE_POLICIES)
    _check_ports(container)
    _check_environment(container)
    _check_mounts(container, surroundings)
    for key in container.given(PROBES):
        _check_probe(container.section(key), key)
    lifecycle = container.section("lifecycle")
    for key in lifecycle.given(("postStart", "preStop")):
        _check_handler(lifecycle.section(key), (*_HANDLERS[:3], "sleep"))
    resources = container.section("resources")
    check_resources(resources)
    for claim in resources.entries("claims"):
        name = claim.get("name")
        if not name:
            claim.required("name")
        elif name not in surroundings.claims:
            claim.problems.not_found(claim.path, name, "spec.resourceClaims of the pod")
    check_security(container.section("securityContext"))


def _check_ports(container: Fields) -> None:
    seen: set[str] = set()
    for port in container.entries("ports"):
        name = port.get("name")
        if name:
            port.fits("name", grammar.port_name)
            if not grammar.port_name(name) and name in seen:
                port.problems.duplicate(port.at("name"), name)
            seen.add(name)
        port.port("containerPort", port.get("containerPort") or None)
        if port.get("hostPort"):
            port.port("hostPort")
        port.choice("protocol", _PROTOCOLS)


def _check_environment(container: Fields) -> None:
    for variable in container.entries("env"):
        variable.named("name", grammar.env_name)
        if variable.get("valueFrom") is not None:
            _check_source(variable.section("valueFrom"), variable.get("value"))
    for source in container.entries("envFrom"):
        source.fits("prefix", grammar.env_name)
        given = source.given(("configMapRef", "secretRef"))
        if len(given) != 1:
            source.wrong("must specify one of: `configMapRef` or `secretRef`")
        for key in given:
            source.section(key).named("name", grammar.dns_subdomain)


def _check_source(source: Fields, value: object) -> None:
    given = source.given(_ENV_SOURCES)
    if not given:
        source.wrong(f"must specify one of: {', '.join(_ENV_SOURCES)}")
    elif value:
        source.wrong("may not be specified when `value` is not empty")
    elif len(given) > 1:
        source.wrong("may not have more than one field specified at a time")
    for key in given:
        reference = source.section(key)
        if key in ("configMapKeyRef", "secretKeyRef"):
            reference.named("key", grammar.config_key)
        elif key == "fieldRef":
            _check_field_path(reference)
        elif key == "resourceFieldRef":
            reference.need("resource")


def _check_field_path(reference: Fields) -> None:
    field_path = reference.get("fieldPath")
    if not field_path:
        reference.required("fieldPath")
    elif field_path.partition("[")[0] in ("metadata.labels", "metadata.annotations"):
        if not field_path.endswith("']"):
            reference.invalid("fieldPath", "needs a key, as in metadata.labels['app']")
    else:
        reference.choice("fieldPath", _FIELD_PATHS)


def _check_mounts(container: Fields, surroundings: PodSurroundings) -> None:
    mounted: set[str] = set()
    for mount in container.entries("volumeMounts"):
        name, target = mount.get("name") or "", mount.get("mountPath")
        mount.need("name")
        if name not in surroundings.volumes:
            mount.problems.not_found(mount.at("name"), name, "spec.volumes of the pod")
        if not target:
            mount.required("mountPath")
        elif target in mounted:
            mount.invalid("mountPath", "must be unique")
        mounted.add(target or "")
        if mount.get("subPath") and mount.get("subPathExpr"):
            mount.invalid("subPathExpr", "subPath and subPathExpr exclude each other", value="")
        for key in ("subPath", "subPathExpr"):
            check_local_path(mount, key)
    for device in container.entries("volumeDevices"):
        device.need("name", "devicePath")
        name = device.get("name")
        if name and name not in surroundings.volumes:
            device.problems.not_found(device.at("name"), name, "spec.volumes of the pod")


def check_local_path(holder: Fields, key: str) -> None:
    """A path below a volume: relative, and never upwards."""
    value = holder.get(key) or ""
    if value.startswith("/"):
        holder.invalid(key, "must be a relative path")
    if ".." in value.split("/"):
        holder.invalid(key, "must not contain '..'")


def _check_probe(probe: Fields, role: str) -> None:
    _check_handler(probe, _HANDLERS)
    probe.minimum(
        0, "initialDelaySeconds", "timeoutSeconds", "periodSeconds", "failureThreshold",
        "successThreshold",
    )  # fmt: skip
    if role != "readinessProbe" and probe.get("successThreshold") not in (None, 0, 1):
        probe.invalid("successThreshold", "must be 1")
    probe.minimum(1, "terminationGracePeriodSeconds")


def _check_handler(handler: Fields, kinds: tuple[str, ...]) -> None:
    given = handler.given(kinds)
    if not given:
        message = f"must specify a handler: {', '.join(kinds)}"
        handler.problems.required(handler.path, message)
    for key in given[1:]:
        handler.forbidden(key, "may not specify more than 1 handler type")
    for key in given[:1]:
        body = handler.section(key)
        if key == "exec":
            body.need("command")
        elif key != "sleep":
            body.port("port")
        if key == "httpGet":
            body.choice("scheme", ("HTTP", "HTTPS"))


def check_security(context: Fields) -> None:
    """Security context of a container or a pod."""
    context.minimum(0, "runAsUser", "runAsGroup", "fsGroup")
    if context.get("privileged") and context.get("allowPrivilegeEscalation") is False:
        context.wrong("cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
    profile = context.section("seccompProfile")
    if profile.value:
        profile.need("type")
        profile.choice("type", ("Localhost", "RuntimeDefault", "Unconfined"))
        if profile.get("type") == "Localhost":
            profile.need("localhostProfile")


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
