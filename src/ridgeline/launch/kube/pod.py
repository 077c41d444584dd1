"""The pod of one node: everything that JobSet, TrainJob and RayJob wrap.

Requests equal limits for every resource (the server wants it of devices, and the Guaranteed class
is evicted last); devices are whole. /dev/shm is memory-backed: Docker's 64 MiB end loaders and
NCCL with a bus error. There is no liveness probe: a rank that compiles for minutes is alive, and
one that hangs in a collective is ended by the run itself.
"""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from ridgeline.launch.cluster_file import ClusterFile, Kubernetes, NodeSection
from ridgeline.launch.job import RECIPE, LaunchJob, torchrun_command

CONTAINER = "node"
REPLICATED_JOB = "node"
LABEL = "ridgeline.dev/run"
"""On everything that belongs to a run: how it is found again, and cancelled."""
SHARED_MEMORY_MOUNT = {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 (the kernel's name)
_RECIPE_FOLDER = "/etc/ridgeline"
_INDEX_ZERO = '$([ "$JOB_COMPLETION_INDEX" = 0 ] && echo true || echo false)'


def labels(job: LaunchJob) -> dict[str, str]:
    """The labels of every object of the run."""
    return {LABEL: job.name, "app.kubernetes.io/managed-by": "ridgeline"}


def config_map_name(job: LaunchJob) -> str:
    """Where the recipe travels."""
    return f"{job.name}-recipe"


def torchrun_line(job: LaunchJob) -> str:
    """What the node's shell runs: put the recipe where ranks read it, become torchrun.

    `exec` makes torchrun the process that Kubernetes sends SIGTERM, so that it can tell the ranks
    to save. The recipe is renamed into place: several nodes do this at once.
    """
    host, is_host = None, ""
    if job.num_nodes > 1:
        host = f"{job.name}-{REPLICATED_JOB}-0-0.{job.name}"
        is_host = "IS_HOST"
    words = torchrun_command(job, host=host, is_host=is_host, log_folder=f"{job.folder}/logs")
    line = shlex.join(words).replace("is_host=IS_HOST", f"is_host={_INDEX_ZERO}")
    return f"{recipe_line(job)} && exec {line}"


def recipe_line(job: LaunchJob) -> str:
    """Shell that puts the recipe into the run's folder."""
    folder = shlex.quote(job.folder)
    mine = f'{folder}/.{RECIPE}."$HOSTNAME"'
    return (
        f"mkdir -p {folder} && cp {_RECIPE_FOLDER}/{RECIPE} {mine}"
        f" && mv -f {mine} {folder}/{RECIPE}"
    )


def pod_template(
    job: LaunchJob, command: list[str] | None, *, name: str = CONTAINER
) -> dict[str, Any]:
    """The pod of a node, with what it runs (None: the engine says, as Ray does)."""
    place = job.cluster.kubernetes
    container: dict[str, Any] = {
        "name": name,
        "image": place.image,
        "workingDir": place.mount,
        "env": environment(job),
        "resources": resources(job),
        "volumeMounts": volume_mounts(job),
    }
    if command is not None:
        container["command"] = command
    spec: dict[str, Any] = {
        "containers": [container],
        "volumes": volumes(job),
        "terminationGracePeriodSeconds": job.cluster.run.grace_seconds,
    }
    add_placement(place, spec)
    return {"metadata": {"labels": labels(job)}, "spec": spec}


def add_placement(place: Kubernetes, spec: dict[str, Any]) -> None:
    """Where the pod may stand, and as whom; only what the cluster file says."""
    if place.priority_class:
        spec["priorityClassName"] = place.priority_class
    if place.service_account:
        spec["serviceAccountName"] = place.service_account
    if place.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in place.pull_secrets]
    if place.node_selector:
        spec["nodeSelector"] = dict(place.node_selector)
    if place.tolerations:
        spec["tolerations"] = [
            {key: value for key, value in msgspec.to_builtins(one).items() if value}
            for one in place.tolerations
        ]
    if place.host_network:
        spec["hostNetwork"] = True
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"


def environment(job: LaunchJob) -> list[dict[str, Any]]:
    """Variables as Kubernetes lists them, in a stable order."""
    return [{"name": key, "value": value} for key, value in sorted(job.environment.items())]


def resources(job: LaunchJob) -> dict[str, Any]:
    """What a node's pod takes."""
    return resources_of(job.cluster, min(job.cluster.nodes.devices, job.ranks_per_node))


def resources_of(cluster: ClusterFile, devices: int) -> dict[str, Any]:
    """What a pod with so many devices takes: requests and limits alike."""
    nodes, place = cluster.nodes, cluster.kubernetes
    taken: dict[str, str] = {}
    if nodes.cpus:
        taken["cpu"] = str(nodes.cpus)
    if nodes.memory_bytes:
        taken["memory"] = quantity(nodes.memory_bytes)
    if devices:
        taken[nodes.resource] = str(devices)
    taken |= {key: str(count) for key, count in sorted(place.extra_resources.items())}
    return {"requests": taken, "limits": dict(taken)}


def quantity(num_bytes: int) -> str:
    """Bytes as Kubernetes writes them, rounded up to MiB.

    >>> quantity(16 * 2**30), quantity(10**9)
    ('16Gi', '954Mi')
    """
    if num_bytes % 2**30 == 0:
        return f"{num_bytes // 2**30}Gi"
    return f"{-(-num_bytes // 2**20)}Mi"


def volumes(job: LaunchJob) -> list[dict[str, Any]]:
    """Shared memory, the recipe, and the claim that outlives the pods."""
    return [
        shared_memory(job.cluster.nodes),
        {"name": "recipe", "configMap": {"name": config_map_name(job)}},
        {
            "name": "checkpoints",
            "persistentVolumeClaim": {"claimName": job.cluster.kubernetes.claim},
        },
    ]


def shared_memory(nodes: NodeSection) -> dict[str, Any]:
    """The pod's shared memory, larger than Docker's 64 MiB."""
    return {
        "name": "shm",
        "emptyDir": {"medium": "Memory", "sizeLimit": quantity(nodes.shared_memory_bytes)},
    }


def volume_mounts(job: LaunchJob) -> list[dict[str, Any]]:
    """Where the container sees them."""
    return [
        SHARED_MEMORY_MOUNT,
        {"name": "recipe", "mountPath": _RECIPE_FOLDER, "readOnly": True},
        {"name": "checkpoints", "mountPath": job.cluster.kubernetes.mount},
    ]
