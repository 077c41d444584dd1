"""All pods or none: a gang that starts by halves holds its devices and trains nothing.

Kueue admits a whole job by quota. Quota alone is no promise that the pods fit (two halves of two
jobs can each hold half a cluster), so the pods also ask for topology-aware scheduling, which looks
at real nodes: inside one domain of `topology`, or, where none is named, anywhere
(`podset-unconstrained-topology`). https://kueue.sigs.k8s.io/docs/concepts/topology_aware_scheduling

The scheduler's own gangs (Kubernetes 1.36, alpha) are a Workload with a template, a PodGroup with
`gang.minCount`, and `schedulingGroup` in every pod.
"""

from __future__ import annotations

from typing import Any

from ridgeline.launch.job import Job
from ridgeline.launch.kube.pod import labels

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_TOPOLOGY = "kueue.x-k8s.io/podset-{}-topology"
_API = "scheduling.k8s.io/v1alpha2"
_TEMPLATE = "nodes"


def gang_name(job: Job) -> str:
    """Of the Workload and the PodGroup."""
    return f"{job.name}-gang"


def join_queue(job: Job, manifest: dict[str, Any]) -> None:
    """Hand a job's object to Kueue, which holds it back until all of it is admitted."""
    place = job.cluster.kubernetes
    if place.gang == "kueue":
        manifest["metadata"]["labels"] = manifest["metadata"]["labels"] | {QUEUE_LABEL: place.queue}


def join_gang(job: Job, pod: dict[str, Any]) -> None:
    """Make a pod template one of the gang."""
    place = job.cluster.kubernetes
    if place.gang == "kueue":
        mode = place.topology_mode if place.topology else "unconstrained"
        wish = {_TOPOLOGY.format(mode): place.topology or "true"}
        metadata = pod["metadata"]
        metadata["annotations"] = metadata.get("annotations", {}) | wish
    else:
        pod["spec"]["schedulingGroup"] = {"podGroupName": gang_name(job)}


def pod_group(job: Job, controller: dict[str, str], num_pods: int) -> list[dict[str, Any]]:
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
