"""The objects around a node's pod: JobSet, TrainJob with its runtime, RayJob.

Who restarts what. torchrun starts failed ranks again inside their pods. A pod that the cluster
took (preemption, drain, eviction: condition DisruptionTarget) is made anew and counts for nothing;
its node joins the others again. When torchrun itself gives up, the Job fails at once
(`backoffLimit: 0`) and the whole JobSet is made anew, at most `run.restarts` times: one pod alone
cannot go on. JobSet v1alpha2, Trainer v1alpha1, KubeRay v1.
"""

from __future__ import annotations

import shlex
from typing import Any

from ridgeline.launch.job import Job
from ridgeline.launch.kube.gang import join_gang, join_queue
from ridgeline.launch.kube.pod import (
    REPLICATED_JOB,
    labels,
    pod_template,
    quantity,
    recipe_line,
    resources,
    torchrun_line,
)
from ridgeline.launch.ray_line import ray_entry_command

_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"


def metadata(job: Job, name: str | None = None) -> dict[str, Any]:
    """Of every object of the run."""
    return {
        "name": name or job.name,
        "namespace": job.cluster.kubernetes.namespace,
        "labels": labels(job),
    }


def job_set(job: Job) -> dict[str, Any]:
    """A JobSet: one indexed Job with a pod for each node, and DNS names for all of them."""
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


def _job_set_spec(job: Job) -> dict[str, Any]:
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


def _indexed_job(job: Job) -> dict[str, Any]:
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


def train_job(job: Job) -> list[dict[str, Any]]:
    """A TrainingRuntime of the run's own, and the TrainJob that uses it.

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


def ray_job(job: Job) -> dict[str, Any]:
    """A RayJob: KubeRay makes a Ray cluster, runs the entry on it, takes the cluster away."""
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
