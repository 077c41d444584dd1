"""Containers as the server checks them in code (`validateContainers` of Kubernetes 1.36)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ridgeline.launch.check import grammar
from ridgeline.launch.check.metadata import (
    Object,
    check_choice,
    check_minimum,
    check_name,
    check_port,
    entries,
    section,
)
from ridgeline.launch.check.resources import check_resources
from ridgeline.launch.check.verdict import Problems

_PROTOCOLS = ("TCP", "UDP", "SCTP")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
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


def check_containers(
    containers: list[Object],
    path: str,
    surroundings: PodSurroundings,
    problems: Problems,
) -> None:
    """All containers of one list."""
    host_ports: set[tuple[object, ...]] = set()
    for index, container in enumerate(containers):
        at = f"{path}[{index}]"
        _check_container(container, at, surroundings, problems)
        for number, port in enumerate(entries(container, "ports")):
            key = (port.get("protocol", "TCP"), port.get("hostIP"), port.get("hostPort"))
            if port.get("hostPort") and key in host_ports:
                problems.duplicate(f"{at}.ports[{number}].hostPort", port["hostPort"])
            host_ports.add(key)


def check_unique_names(
    lists: tuple[tuple[str, list[Object]], ...],
    problems: Problems,
) -> None:
    """Names of containers are unique in a pod, init containers included."""
    seen: set[str] = set()
    for path, containers in lists:
        for index, container in enumerate(containers):
            name = container.get("name") or ""
            if name and name in seen:
                problems.duplicate(f"{path}[{index}].name", name)
            seen.add(name)


def _check_container(
    container: Object,
    path: str,
    surroundings: PodSurroundings,
    problems: Problems,
) -> None:
    check_name(container.get("name"), grammar.dns_label, f"{path}.name", problems)
    if not container.get("image"):
        problems.required(f"{path}.image")
    check_choice(
        container.get("imagePullPolicy"), _PULL_POLICIES, f"{path}.imagePullPolicy", problems
    )
    check_choice(
        container.get("terminationMessagePolicy"),
        _MESSAGE_POLICIES,
        f"{path}.terminationMessagePolicy",
        problems,
    )
    _check_ports(entries(container, "ports"), f"{path}.ports", problems)
    _check_environment(container, path, problems)
    _check_mounts(container, path, surroundings, problems)
    for key in _PROBES:
        if container.get(key) is not None:
            _check_probe(container[key], f"{path}.{key}", key, problems)
    for key in ("postStart", "preStop"):
        handler = section(container, "lifecycle").get(key)
        if handler is not None:
            _check_handler(handler, f"{path}.lifecycle.{key}", (*_HANDLERS[:3], "sleep"), problems)
    resources = section(container, "resources")
    check_resources(resources, f"{path}.resources", problems)
    for index, claim in enumerate(entries(resources, "claims")):
        at = f"{path}.resources.claims[{index}]"
        if not claim.get("name"):
            problems.required(f"{at}.name")
        elif claim["name"] not in surroundings.claims:
            problems.not_found(at, claim["name"], "spec.resourceClaims of the pod")
    check_security(section(container, "securityContext"), f"{path}.securityContext", problems)


def _check_ports(ports: list[Object], path: str, problems: Problems) -> None:
    seen: set[str] = set()
    for index, port in enumerate(ports):
        at, name = f"{path}[{index}]", port.get("name")
        if name:
            if grammar.port_name(name):
                problems.invalid(f"{at}.name", name, grammar.port_name(name))
            elif name in seen:
                problems.duplicate(f"{at}.name", name)
            seen.add(name)
        check_port(port.get("containerPort") or None, f"{at}.containerPort", problems)
        if port.get("hostPort"):
            check_port(port["hostPort"], f"{at}.hostPort", problems)
        check_choice(port.get("protocol"), _PROTOCOLS, f"{at}.protocol", problems)


def _check_environment(container: Object, path: str, problems: Problems) -> None:
    for index, variable in enumerate(entries(container, "env")):
        at = f"{path}.env[{index}]"
        check_name(variable.get("name"), grammar.env_name, f"{at}.name", problems)
        source = variable.get("valueFrom")
        if source is not None:
            _check_source(source, variable.get("value"), f"{at}.valueFrom", problems)
    for index, source in enumerate(entries(container, "envFrom")):
        at = f"{path}.envFrom[{index}]"
        prefix = source.get("prefix")
        if prefix and grammar.env_name(prefix):
            problems.invalid(f"{at}.prefix", prefix, grammar.env_name(prefix))
        given = [key for key in ("configMapRef", "secretRef") if source.get(key) is not None]
        if len(given) != 1:
            problems.invalid(at, "", "must specify one of: `configMapRef` or `secretRef`")
        for key in given:
            check_name(source[key].get("name"), grammar.dns_subdomain, f"{at}.{key}.name", problems)


def _check_source(source: Object, value: object, path: str, problems: Problems) -> None:
    given = [key for key in _ENV_SOURCES if source.get(key) is not None]
    if not given:
        problems.invalid(path, "", f"must specify one of: {', '.join(_ENV_SOURCES)}")
    elif value:
        problems.invalid(path, "", "may not be specified when `value` is not empty")
    elif len(given) > 1:
        problems.invalid(path, "", "may not have more than one field specified at a time")
    for key in given:
        reference = source[key]
        if key in ("configMapKeyRef", "secretKeyRef"):
            check_name(reference.get("key"), grammar.config_key, f"{path}.{key}.key", problems)
        elif key == "fieldRef":
            _check_field_path(reference.get("fieldPath"), f"{path}.{key}.fieldPath", problems)
        elif key == "resourceFieldRef" and not reference.get("resource"):
            problems.required(f"{path}.{key}.resource")


def _check_field_path(field_path: str | None, path: str, problems: Problems) -> None:
    if not field_path:
        problems.required(path)
    elif field_path.partition("[")[0] in ("metadata.labels", "metadata.annotations"):
        if not field_path.endswith("']"):
            problems.invalid(path, field_path, "needs a key, as in metadata.labels['app']")
    elif field_path not in _FIELD_PATHS:
        problems.unsupported(path, field_path, _FIELD_PATHS)


def _check_mounts(
    container: Object,
    path: str,
    surroundings: PodSurroundings,
    problems: Problems,
) -> None:
    mounted: set[str] = set()
    for index, mount in enumerate(entries(container, "volumeMounts")):
        at, name, target = (
            f"{path}.volumeMounts[{index}]",
            mount.get("name"),
            mount.get("mountPath"),
        )
        if not name:
            problems.required(f"{at}.name")
        if (name or "") not in surroundings.volumes:
            problems.not_found(f"{at}.name", name or "", "spec.volumes of the pod")
        if not target:
            problems.required(f"{at}.mountPath")
        elif target in mounted:
            problems.invalid(f"{at}.mountPath", target, "must be unique")
        mounted.add(target or "")
        if mount.get("subPath") and mount.get("subPathExpr"):
            problems.invalid(f"{at}.subPathExpr", "", "subPath and subPathExpr exclude each other")
        for key in ("subPath", "subPathExpr"):
            check_local_path(mount.get(key), f"{at}.{key}", problems)
    for index, device in enumerate(entries(container, "volumeDevices")):
        at = f"{path}.volumeDevices[{index}]"
        for key in ("name", "devicePath"):
            if not device.get(key):
                problems.required(f"{at}.{key}")
        if device.get("name") and device["name"] not in surroundings.volumes:
            problems.not_found(f"{at}.name", device["name"], "spec.volumes of the pod")


def check_local_path(value: str | None, path: str, problems: Problems) -> None:
    """A path below a volume: relative, and never upwards."""
    if not value:
        return
    if value.startswith("/"):
        problems.invalid(path, value, "must be a relative path")
    if ".." in value.split("/"):
        problems.invalid(path, value, "must not contain '..'")


def _check_probe(probe: Object, path: str, role: str, problems: Problems) -> None:
    _check_handler(probe, path, _HANDLERS, problems)
    for key in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "failureThreshold"):
        check_minimum(probe.get(key), 0, f"{path}.{key}", problems)
    threshold = probe.get("successThreshold")
    check_minimum(threshold, 0, f"{path}.successThreshold", problems)
    if role != "readinessProbe" and threshold not in (None, 0, 1):
        problems.invalid(f"{path}.successThreshold", threshold, "must be 1")
    check_minimum(
        probe.get("terminationGracePeriodSeconds"),
        1,
        f"{path}.terminationGracePeriodSeconds",
        problems,
    )


def _check_handler(
    handler: Object,
    path: str,
    kinds: tuple[str, ...],
    problems: Problems,
) -> None:
    given = [key for key in kinds if handler.get(key) is not None]
    if not given:
        problems.required(path, f"must specify a handler: {', '.join(kinds)}")
    for key in given[1:]:
        problems.forbidden(f"{path}.{key}", "may not specify more than 1 handler type")
    for key in given[:1]:
        body = handler[key]
        if key == "exec":
            if not body.get("command"):
                problems.required(f"{path}.exec.command")
        elif key != "sleep":
            check_port(body.get("port"), f"{path}.{key}.port", problems)
        if key == "httpGet":
            check_choice(body.get("scheme"), ("HTTP", "HTTPS"), f"{path}.httpGet.scheme", problems)


def check_security(context: Object, path: str, problems: Problems) -> None:
    """Security context of a container or a pod."""
    for key in ("runAsUser", "runAsGroup", "fsGroup"):
        check_minimum(context.get(key), 0, f"{path}.{key}", problems)
    if context.get("privileged") and context.get("allowPrivilegeEscalation") is False:
        problems.invalid(
            path, "", "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        )
    profile = section(context, "seccompProfile")
    if profile:
        allowed = ("Localhost", "RuntimeDefault", "Unconfined")
        kind = profile.get("type")
        if not kind:
            problems.required(f"{path}.seccompProfile.type")
        check_choice(kind, allowed, f"{path}.seccompProfile.type", problems)
        if kind == "Localhost" and not profile.get("localhostProfile"):
            problems.required(f"{path}.seccompProfile.localhostProfile")
