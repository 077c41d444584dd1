"""Everything that one run needs on Kubernetes, as documents in the order of creation.

The last document is the run itself; those before it are owned by it once it exists, so that
deleting the run leaves nothing behind.

Around a node's pod is a JobSet, a TrainJob with its runtime, or a RayJob.

Who restarts what: torchrun starts failed ranks again inside their pods. A pod that the cluster
took (preemption, drain, eviction: condition DisruptionTarget) is made anew and counts for nothing;
its node joins the others again. When torchrun itself gives up, the Job fails at once
(`backoffLimit: 0`) and the whole JobSet is made anew, at most `run.restarts` times: one pod alone
cannot go on. JobSet v1alpha2, Trainer v1alpha1, KubeRay v1.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Literal

from ridgeline.errors import InputError, MissingExtra
from ridgeline.launch.cluster_file import IMAGE, REQUESTS, needed
from ridgeline.launch.job import RECIPE, LaunchJob
from ridgeline.launch.kube.pod import (
    REPLICATED_JOB,
    config_map_name,
    labels,
    pod_template,
    quantity,
    recipe_line,
    resources,
    torchrun_line,
)
from ridgeline.launch.ray_entry import ray_entry_command

_CONFIG_MAP_BYTES = 1_000_000
"""The server takes 1 MiB for the whole object."""


def manifests(
    job: LaunchJob, *, engine: Literal["kubernetes", "ray"] = "kubernetes", path: Path | None = None
) -> list[dict[str, Any]]:
    """The documents of a run.

    Args:
        job: What is launched.
        engine: Which object runs it: a JobSet or TrainJob, or a RayJob.
        path: The cluster file, for messages.

    Raises:
        InputError: The cluster file lacks a key, or the recipe does not fit a ConfigMap.
    """
    _check(job, path)
    if engine == "ray":
        main = [ray_job(job)]
        num_pods = job.num_nodes + 1
    else:
        main = train_job(job) if job.cluster.kubernetes.kind == "trainjob" else [job_set(job)]
        num_pods = job.num_nodes
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, config_map_name(job)),
        "data": {RECIPE: job.recipe_text},
    }
    controller = {
        "apiGroup": main[-1]["apiVersion"].partition("/")[0],
        "kind": main[-1]["kind"],
        "name": job.name,
    }
    return [config, *pod_group(job, controller, num_pods), *main]


def _check(job: LaunchJob, path: Path | None) -> None:
    cluster = job.cluster
    queue = "Kueue's LocalQueue (or gang = \"pod-group\" for the scheduler's own gangs)"
    keys = {
        "kubernetes.image": IMAGE,
        "kubernetes.claim": "a PersistentVolumeClaim: without one a restarted run has no checkpoint"
        " to resume from",
        **({"kubernetes.queue": queue} if cluster.kubernetes.gang == "kueue" else {}),
        "nodes.cpus": REQUESTS,
        "nodes.memory_bytes": REQUESTS,
    }
    needed(cluster, path, keys)
    if len(job.recipe_text.encode()) > _CONFIG_MAP_BYTES:
        raise InputError(f"the recipe of {job.name} is above {_CONFIG_MAP_BYTES:,} bytes")


def as_yaml(documents: list[dict[str, Any]]) -> str:
    """The documents as `kubectl apply -f` takes them.

    Raises:
        MissingExtra: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise MissingExtra("pyyaml", "kubernetes") from None

    class Readable(yaml.SafeDumper):  # type: ignore[misc]
        """Texts of several lines as blocks, no anchors for what occurs twice."""

        def ignore_aliases(self, _data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Readable.add_representer(str, text)
    dumped: str = yaml.dump_all(documents, Dumper=Readable, sort_keys=False, width=100)
    return dumped


QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_TOPOLOGY = "kueue.x-k8s.io/podset-{}-topology"
_API = "scheduling.k8s.io/v1alpha2"
_TEMPLATE = "nodes"
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"


def metadata(job: LaunchJob, name: str | None = None) -> dict[str, Any]:
    """The metadata of every object of the run."""
    return {
        "name": name or job.name,
        "namespace": job.cluster.kubernetes.namespace,
        "labels": labels(job),
    }


def job_set(job: LaunchJob) -> dict[str, Any]:
    """Make the JobSet of a run: one indexed Job, a pod for each node, DNS names for all."""
    manifest: dict[str, Any] = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(job),
        "spec": {
            **_job_set_spec(job),
            "ttlSecondsAfterFinished": job.cluster.kubernetes.keep_seconds,
        },
    }
    if job.cluster.kubernetes.exclusive_topology:
        manifest["metadata"]["annotations"] = {
            _EXCLUSIVE: job.cluster.kubernetes.exclusive_topology
        }
    join_queue(job, manifest)
    return manifest


def _job_set_spec(job: LaunchJob) -> dict[str, Any]:
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All"},
        "failurePolicy": {
            "maxRestarts": job.cluster.run.restarts,
            # The gang is placed again only when all of the old one has gone.
            "restartStrategy": "BlockingRecreate",
        },
        "replicatedJobs": [
            {"name": REPLICATED_JOB, "replicas": 1, "template": {"spec": _indexed_job(job)}}
        ],
    }


def _indexed_job(job: LaunchJob) -> dict[str, Any]:
    pod = pod_template(job, ["sh", "-c", torchrun_line(job)])
    pod["spec"]["restartPolicy"] = "Never"  # what podFailurePolicy asks for
    join_gang(job, pod)
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    return {
        "completionMode": "Indexed",
        "parallelism": job.num_nodes,
        "completions": job.num_nodes,
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [disrupted]},
        "podReplacementPolicy": "Failed",
        "template": pod,
    }


def train_job(job: LaunchJob) -> list[dict[str, Any]]:
    """Make a TrainingRuntime of the run's own, and the TrainJob that uses it.

    The runtime holds what a TrainJob has no words for: volumes, failure rules, placement.
    """
    spec = _job_set_spec(job)
    inner = spec["replicatedJobs"][0]
    for key in ("parallelism", "completions"):
        del inner["template"]["spec"][key]  # Trainer sets them from numNodes
    inner["template"]["metadata"] = {
        "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    }
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": metadata(job, f"{job.name}-runtime"),
        "spec": {
            "mlPolicy": {"numNodes": job.num_nodes, "torch": {}},
            "template": {"spec": spec},
        },
    }
    container = inner["template"]["spec"]["template"]["spec"]["containers"][0]
    manifest = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "TrainingRuntime",
                "name": f"{job.name}-runtime",
            },
            "trainer": {
                "image": container["image"],
                "command": container["command"],
                "numNodes": job.num_nodes,
                "numProcPerNode": job.ranks_per_node,
                "resourcesPerNode": resources(job),
            },
        },
    }
    join_queue(job, manifest)
    return [runtime, manifest]


def ray_job(job: LaunchJob) -> dict[str, Any]:
    """Make the RayJob of a run: KubeRay makes a cluster, runs the entry, takes it away."""
    ray = job.cluster.ray
    nodes = pod_template(job, None, name="ray-worker")
    head = pod_template(job, None, name="ray-head")
    taken = {"cpu": str(ray.head_cpus), "memory": quantity(ray.head_memory_bytes)}
    del head["spec"]["containers"][0]["env"]  # it is for ranks, and none stands here
    head["spec"]["containers"][0]["resources"] = {"requests": taken, "limits": dict(taken)}
    join_gang(job, nodes)
    join_gang(job, head)
    entry = shlex.join(ray_entry_command(job))
    group = {
        "groupName": "nodes",
        "replicas": job.num_nodes,
        "minReplicas": job.num_nodes,
        "maxReplicas": job.num_nodes,
        "rayStartParams": {},
        "template": nodes,
    }
    manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata(job),
        "spec": {
            "entrypoint": f"sh -c {shlex.quote(f'{recipe_line(job)} && exec {entry}')}",
            "backoffLimit": job.cluster.run.restarts,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": job.cluster.kubernetes.keep_seconds,
            "rayClusterSpec": {
                "rayVersion": ray.version,
                # The head keeps the books; ranks stand on the nodes alone.
                "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": head},
                "workerGroupSpecs": [group],
            },
        },
    }
    join_queue(job, manifest)
    return manifest


# All pods or none: a gang that starts by halves holds its devices and trains nothing.
#
# Kueue admits a whole job by quota. Quota alone does not make the pods fit (two halves of two jobs
# can each hold half a cluster), so the pods also ask for topology-aware scheduling, which looks at
# real nodes: inside one domain of `topology`, or, where none is named, anywhere
# (`podset-unconstrained-topology`).
# https://kueue.sigs.k8s.io/docs/concepts/topology_aware_scheduling
#
# The scheduler's own gangs (Kubernetes 1.36, alpha) are a Workload with a template, a PodGroup with
# `gang.minCount`, and `schedulingGroup` in every pod.


def gang_name(job: LaunchJob) -> str:
    """Name the Workload and the PodGroup of the run."""
    return f"{job.name}-gang"


def join_queue(job: LaunchJob, manifest: dict[str, Any]) -> None:
    """Hand a job's object to Kueue, which holds it back until all of it is admitted."""
    place = job.cluster.kubernetes
    if place.gang == "kueue":
        manifest["metadata"]["labels"] = manifest["metadata"]["labels"] | {QUEUE_LABEL: place.queue}


def join_gang(job: LaunchJob, pod: dict[str, Any]) -> None:
    """Make a pod template one of the gang."""
    place = job.cluster.kubernetes
    if place.gang == "kueue":
        mode = place.topology_mode if place.topology else "unconstrained"
        wish = {_TOPOLOGY.format(mode): place.topology or "true"}
        metadata = pod["metadata"]
        metadata["annotations"] = metadata.get("annotations", {}) | wish
    else:
        pod["spec"]["schedulingGroup"] = {"podGroupName": gang_name(job)}


def pod_group(job: LaunchJob, controller: dict[str, str], num_pods: int) -> list[dict[str, Any]]:
    """The Workload and the PodGroup of the scheduler's own gangs; none with Kueue."""
    place = job.cluster.kubernetes
    if place.gang != "pod-group":
        return []
    metadata = {"name": gang_name(job), "namespace": place.namespace, "labels": labels(job)}
    policy: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": num_pods}}}
    if place.topology:
        policy["schedulingConstraints"] = {"topology": [{"key": place.topology}]}
    if place.priority_class:
        policy["priorityClassName"] = place.priority_class
    template = {"name": _TEMPLATE, **policy}
    reference = {"workload": {"workloadName": gang_name(job), "podGroupTemplateName": _TEMPLATE}}
    return [
        {
            "apiVersion": _API,
            "kind": "Workload",
            "metadata": metadata,
            "spec": {"controllerRef": controller, "podGroupTemplates": [template]},
        },
        {
            "apiVersion": _API,
            "kind": "PodGroup",
            "metadata": dict(metadata),
            "spec": {"podGroupTemplateRef": reference, **policy},
        },
    ]
