"""`ridgeline serve` on Kubernetes: a Deployment of servers, a Service, and what scales them.

Each pod is one server with one engine; the Service spreads requests. Loading a model takes minutes,
so the start-up probe waits, and no pod gets requests before `/ready` says so. A pod that is taken
away is first forgotten by the Service (`preStop` sleeps while endpoints spread), then gets SIGTERM
and finishes what it has: no request is lost while pods come and go.

The autoscaler follows what the servers say in `/metrics`: as an HorizontalPodAutoscaler over the
custom metrics API (prometheus-adapter), or as a KEDA ScaledObject that asks Prometheus itself.
`scaling_policy.py` reads both back and computes what they will do.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ridgeline.batching.scaling.settings import Scaling
from ridgeline.errors import InputError
from ridgeline.launch.cluster_file import IMAGE, REQUESTS, ClusterFile, needed
from ridgeline.launch.kube.pod import (
    SHARED_MEMORY_MOUNT,
    add_placement,
    resources_of,
    shared_memory,
)

Engine = Literal["hpa", "keda"]

PORT = 8000
LABEL = "ridgeline.dev/server"
"""On everything that belongs to a server: how its Service and its metrics find it."""
SLEEP_SECONDS = 15
"""The wait before SIGTERM: endpoints need a while to spread to every node."""
LOADING_SECONDS = 1800
"""A server may take so long to start; then its pod is made anew."""
POLLING_SECONDS = 15
_PROBE_SECONDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerToDeploy:
    """What is to be served, and how far it scales."""

    name: str
    """The name of all objects, an RFC 1035 label."""
    words: Sequence[str]
    """`serve MODEL …`, without address, port and replicas."""
    cluster: ClusterFile
    replicas: int
    """The replicas where nothing scales them."""
    scaling: Scaling | None
    shutdown_seconds: float
    """The time that a server takes to finish open requests after SIGTERM."""


def serving_manifests(
    server: ServerToDeploy, autoscaler: Engine, path: Path | None = None
) -> list[dict[str, Any]]:
    """The documents of a server, in the order of creation.

    Args:
        server: What is served.
        autoscaler: Which object scales it, where it scales.
        path: The cluster file, for messages.

    Raises:
        InputError: The cluster file lacks a key, or Kubernetes cannot follow what it shall.
    """
    keys = {"kubernetes.image": IMAGE, "nodes.cpus": REQUESTS, "nodes.memory_bytes": REQUESTS}
    if server.scaling is not None and autoscaler == "keda":
        keys["kubernetes.prometheus"] = "where KEDA asks for the metric"
    needed(server.cluster, path, keys)
    documents = [_deployment(server), _service(server)]
    if server.scaling is not None:
        signal, target = _signal(server.scaling)
        if autoscaler == "keda":
            documents.append(_scaled_object(server, server.scaling, signal, target))
        else:
            documents.append(_autoscaler(server, server.scaling, signal, target))
    return documents


def _signal(scaling: Scaling) -> tuple[str, str]:
    """The metric to follow, and the quantity of it that each pod shall have."""
    if scaling.on == "queue":
        return "ridgeline_open_requests", _quantity(scaling.open_per_replica)
    if scaling.on == "kv":
        return "vllm_kv_cache_usage_perc", _quantity(scaling.kv_target)
    raise InputError(
        "--manifest with --scale-on slo: Kubernetes' autoscalers follow a level, not the burn of a"
        " budget; use queue or kv"
    )


def _quantity(value: float) -> str:
    """Write a number as manifests do.

    >>> _quantity(8.0), _quantity(0.7)
    ('8', '700m')
    """
    return str(int(value)) if value == int(value) else f"{round(value * 1000)}m"


def _metadata(server: ServerToDeploy) -> dict[str, Any]:
    labels = {LABEL: server.name, "app.kubernetes.io/managed-by": "ridgeline"}
    return {
        "name": server.name,
        "namespace": server.cluster.kubernetes.namespace,
        "labels": labels,
    }


def _deployment(server: ServerToDeploy) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "selector": {"matchLabels": {LABEL: server.name}},
        # A new server must be ready before an old one goes.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0}},
        "template": _pod(server),
    }
    if server.scaling is None:
        spec["replicas"] = server.replicas  # else it is the autoscaler's, and applying keeps it
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(server),
        "spec": spec,
    }


def _pod(server: ServerToDeploy) -> dict[str, Any]:
    place, nodes = server.cluster.kubernetes, server.cluster.nodes
    python = [server.cluster.run.python, "-m", "ridgeline.cli.main"]
    line = shlex.join([*python, *server.words, "--host", "0.0.0.0"])  # noqa: S104 (the pod's own)
    volumes, mounts = [shared_memory(nodes)], [SHARED_MEMORY_MOUNT]
    if place.claim:
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": place.claim}})
        mounts = [*mounts, {"name": "models", "mountPath": place.mount}]
    container = {
        "name": "server",
        "image": place.image,
        # `exec` makes the server the process that Kubernetes sends SIGTERM.
        "command": ["sh", "-c", f"exec {line} --port {PORT}"],
        "env": [{"name": key, "value": value} for key, value in _environment(server)],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": resources_of(server.cluster, nodes.devices),
        "startupProbe": _probe("/health", failures=LOADING_SECONDS // _PROBE_SECONDS),
        "readinessProbe": _probe("/ready", failures=1),
        # `/health` is the engine's heartbeat: long steps pass, a hanging engine does not.
        "livenessProbe": _probe("/health", failures=24),
        "lifecycle": {"preStop": {"sleep": {"seconds": SLEEP_SECONDS}}},
        "volumeMounts": mounts,
    }
    spec: dict[str, Any] = {
        "containers": [container],
        "volumes": volumes,
        "terminationGracePeriodSeconds": SLEEP_SECONDS + int(server.shutdown_seconds) + 10,
    }
    add_placement(place, spec)
    labels = _metadata(server)["labels"]
    scrape = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(PORT),
        "prometheus.io/path": "/metrics",
    }
    return {"metadata": {"labels": labels, "annotations": scrape}, "spec": spec}


def _environment(server: ServerToDeploy) -> list[tuple[str, str]]:
    return sorted({"PYTHONUNBUFFERED": "1", **server.cluster.environment}.items())


def _probe(path: str, *, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": _PROBE_SECONDS,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }


def _service(server: ServerToDeploy) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(server),
        "spec": {
            "selector": {LABEL: server.name},
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }


def _behaviour(scaling: Scaling) -> dict[str, Any]:
    """Rates are the server's defaults, written out; the windows are ours."""
    double = {"type": "Percent", "value": 100, "periodSeconds": 15}
    four = {"type": "Pods", "value": 4, "periodSeconds": 15}
    up, down = round(scaling.up_window_seconds), round(scaling.down_window_seconds)
    if max(up, down) > 3600:
        raise InputError("--manifest: Kubernetes remembers an hour; shorten --scale-down-after")
    return {
        "scaleUp": {"stabilizationWindowSeconds": up, "policies": [double, four]},
        "scaleDown": {"stabilizationWindowSeconds": down, "policies": [double]},
    }


def _target(server: ServerToDeploy) -> dict[str, str]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": server.name}


def _autoscaler(
    server: ServerToDeploy, scaling: Scaling, signal: str, target: str
) -> dict[str, Any]:
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": signal},
            "target": {"type": "AverageValue", "averageValue": target},
        },
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _metadata(server),
        "spec": {
            "scaleTargetRef": _target(server),
            "minReplicas": scaling.minimum,
            "maxReplicas": scaling.maximum,
            "metrics": [metric],
            "behavior": _behaviour(scaling),
        },
    }


def _scaled_object(
    server: ServerToDeploy, scaling: Scaling, signal: str, target: str
) -> dict[str, Any]:
    place = server.cluster.kubernetes
    # Prometheus' own name of the metric; vLLM's have a colon, which no Kubernetes metric has.
    series = signal.replace("vllm_", "vllm:", 1)
    query = f'sum({series}{{namespace="{place.namespace}",pod=~"{server.name}-.*"}})'
    number = str(float(target[:-1]) / 1000) if target.endswith("m") else target
    trigger = {
        "type": "prometheus",
        "name": signal,
        "metricType": "AverageValue",
        "metadata": {"serverAddress": place.prometheus, "query": query, "threshold": number},
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": _metadata(server),
        "spec": {
            "scaleTargetRef": _target(server),
            "minReplicaCount": scaling.minimum,
            "maxReplicaCount": scaling.maximum,
            "pollingInterval": POLLING_SECONDS,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behaviour(scaling)}},
            "triggers": [trigger],
        },
    }
