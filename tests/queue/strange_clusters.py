"""Clusters of a third kind, by what people report of theirs: eleven with a fault, four without.

They were written before the doctor was run on any of them, with what it should name first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.queue.planted_clusters import GPU, Cluster, spread, stamp

DRA = "resource.k8s.io/v1"


def by_claims(c: Cluster) -> None:
    """What device plugins count, told by ResourceSlices and ResourceClaims instead (DRA)."""
    made: list[dict[str, Any]] = []
    for one in c.objects:
        about = one["metadata"]
        if one["kind"] == "Node":
            gpus = int(one["status"]["allocatable"].pop(GPU, 0))
            one["status"]["capacity"].pop(GPU, None)
            devices = [{"name": f"gpu-{number}", "attributes": {"type": {"string": "gpu"}}}
                       for number in range(gpus)]  # fmt: skip
            spec = {
                "driver": "gpu.nvidia.com",
                "nodeName": about["name"],
                "devices": devices,
                "pool": {"name": about["name"], "generation": 1, "resourceSliceCount": 1},
            }
            made.append({"apiVersion": DRA, "kind": "ResourceSlice", "spec": spec,
                         "metadata": {"name": f"{about['name']}-gpu.nvidia.com"}})  # fmt: skip
        elif one["kind"] == "Pod":
            resources = one["spec"]["containers"][0]["resources"]
            gpus = int(resources["requests"].pop(GPU, 0))
            resources["limits"].pop(GPU, None)
            if not gpus:
                continue
            claim = f"{about['name']}-gpus"
            resources["claims"] = [{"name": "gpus"}]
            one["spec"]["resourceClaims"] = [
                {"name": "gpus", "resourceClaimTemplateName": f"{gpus}-gpus"}
            ]
            one["status"]["resourceClaimStatuses"] = [
                {"name": "gpus", "resourceClaimName": claim}]  # fmt: skip
            request = {
                "name": "gpus",
                "exactly": {
                    "deviceClassName": "gpu.nvidia.com",
                    "allocationMode": "ExactCount",
                    "count": gpus,
                },
            }
            made.append({"apiVersion": DRA, "kind": "ResourceClaim",
                         "metadata": {"name": claim, "namespace": about["namespace"]},
                         "spec": {"devices": {"requests": [request]}}})  # fmt: skip
    c.objects += made


def claims_spread(c: Cluster) -> None:
    """GPUs of claims, spread thinly."""
    spread(c, 10, (2, 3), (8, 8))
    by_claims(c)


def claims_in_part(c: Cluster) -> None:
    """Two jobs whose ranks claim GPUs, each with half of its ranks."""
    names = c.nodes(4)
    for job in range(2):
        c.gang(f"pretrain-{job}", running=names[2 * job : 2 * job + 2], waiting=2, gpus=8,
               label="jobset.sigs.k8s.io/jobset-name")  # fmt: skip
    by_claims(c)


def group_of_one(c: Cluster) -> None:
    """Volcano's PodGroups that are content with one pod of four."""
    names = c.nodes(4)
    for job in range(2):
        name = f"ft-{job}"
        c.gang(name, running=names[2 * job : 2 * job + 2], waiting=2, gpus=8,
               annotations={"scheduling.k8s.io/group-name": f"{name}-group"})  # fmt: skip
        c.objects.append({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
                          "metadata": {"name": f"{name}-group", "namespace": "research"},
                          "spec": {"minMember": 1, "queue": "default"},
                          "status": {"phase": "Running"}})  # fmt: skip


def in_crash_loops(c: Cluster) -> None:
    """Services that crash again and again, and an image that is not there, hold three nodes."""
    names = c.nodes(6)
    c.busy(names[3:])
    for name, reason in zip(names[:3], ("CrashLoopBackOff", "CrashLoopBackOff",
                                        "ImagePullBackOff"), strict=True):  # fmt: skip
        c.pod(gpus=8, node=name, ran=600, prefix="svc", owner=("ReplicaSet", "llm"))
        status = c.objects[-1]["status"]
        status["phase"] = "Running" if reason.startswith("Crash") else "Pending"
        status["containerStatuses"] = [
            {"name": "main", "ready": False, "restartCount": 118,
             "state": {"waiting": {"reason": reason}}}]  # fmt: skip
    for _ in range(2):
        c.pod(gpus=8, waited=200, prefix="next")


def never_gone(c: Cluster) -> None:
    """Pods that were deleted hours ago and still hold their GPUs."""
    names = c.nodes(5)
    c.busy(names[3:])
    for name in names[:3]:
        c.pod(gpus=8, node=name, ran=3000, prefix="old")
        c.objects[-1]["metadata"] |= {"deletionTimestamp": stamp(300),
                                      "deletionGracePeriodSeconds": 30}  # fmt: skip
    for _ in range(3):
        c.pod(gpus=8, waited=250, prefix="next")


def fallen_off(c: Cluster) -> None:
    """One GPU of each free node that its device plugin has given up, and jobs of whole nodes."""
    names = c.nodes(6)
    c.busy(names[3:])
    for one in c.objects:
        if one["kind"] == "Node" and one["metadata"]["name"] in names[:3]:
            one["status"]["allocatable"][GPU] = "7"
            one["status"]["capacity"][GPU] = "8"
    for _ in range(3):
        c.pod(gpus=8, waited=120, prefix="whole")


def no_more_nics(c: Cluster) -> None:
    """Nodes with GPUs left whose network cards are all given away."""
    names = c.nodes(6)
    for one in c.objects:
        if one["kind"] == "Node":
            one["status"]["allocatable"]["rdma/hca_shared_devices"] = "8"
    for name in names:
        c.pod(gpus=4, node=name, ran=700)
        asked = c.objects[-1]["spec"]["containers"][0]["resources"]
        asked["requests"]["rdma/hca_shared_devices"] = "8"
    for _ in range(4):
        c.pod(gpus=4, prefix="ft", waited=100)
        asked = c.objects[-1]["spec"]["containers"][0]["resources"]
        asked["requests"]["rdma/hca_shared_devices"] = "1"


def no_scratch(c: Cluster) -> None:
    """Pods without GPUs that keep data sets on the disks of GPU nodes."""
    names = c.nodes(4)
    for name in names:
        c.pod(gpus=2, node=name, ran=700)
        c.pod(gpus=0, cores=2, gigabytes=4, node=name, ran=900, prefix="data")
        asked = c.objects[-1]["spec"]["containers"][0]["resources"]
        asked["requests"]["ephemeral-storage"] = "3300Gi"
    for _ in range(3):
        c.pod(gpus=4, prefix="train", waited=100)
        asked = c.objects[-1]["spec"]["containers"][0]["resources"]
        asked["requests"]["ephemeral-storage"] = "1Ti"


def queue(name: str, gpus: int, **more: Any) -> list[dict[str, Any]]:
    """A ClusterQueue of one flavor, with a LocalQueue of the same name."""
    flavors = [{"name": "gpu", "resources": [{"name": GPU, "nominalQuota": gpus}]}]
    return [
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": name},
         "spec": {"resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}], **more}},
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
         "metadata": {"name": name, "namespace": "research"}, "spec": {"clusterQueue": name}},
    ]  # fmt: skip


def queue_on_hold(c: Cluster) -> None:
    """A ClusterQueue that somebody has stopped, with all of its quota left."""
    c.busy(c.nodes(6)[:2])
    c.objects += queue("vision", 32, stopPolicy="Hold")
    for _ in range(4):
        c.pod(gpus=8, gates=True, labels={"kueue.x-k8s.io/queue-name": "vision"}, prefix="held")


def queue_that_is_not_there(c: Cluster) -> None:
    """Pods that name a LocalQueue which does not exist in their namespace."""
    c.busy(c.nodes(5)[:2])
    c.objects += queue("vision", 40)
    for _ in range(3):
        c.pod(gpus=8, gates=True, labels={"kueue.x-k8s.io/queue-name": "visoin"}, prefix="held")


def namespace_full(c: Cluster) -> None:
    """A ResourceQuota that is used up: the Job's pods are refused, and nobody sees them wait."""
    names = c.nodes(5)
    for name in names[:2]:
        c.pod(gpus=8, node=name, ran=500)
    amounts = {"requests.nvidia.com/gpu": "16"}
    c.objects += [
        {"apiVersion": "v1", "kind": "ResourceQuota",
         "metadata": {"name": "gpus", "namespace": "research"},
         "spec": {"hard": amounts}, "status": {"hard": amounts, "used": amounts}},
        {"apiVersion": "batch/v1", "kind": "Job",
         "metadata": {"name": "sweep", "namespace": "research", "creationTimestamp": stamp(240)},
         "spec": {"parallelism": 2, "completions": 2, "template": {"spec": {"containers": [
             {"name": "main", "resources": {"limits": {GPU: "8"}, "requests": {GPU: "8"}}}]}}},
         "status": {}},
    ]  # fmt: skip


STRANGE: dict[str, tuple[str, Callable[[Cluster], None]]] = {
    "GPUs of claims, spread": ("spreading", claims_spread),
    "jobs of claims in part": ("no-gang", claims_in_part),
    "groups that are content with one": ("no-gang", group_of_one),
    "pods in crash loops": ("held-without-running", in_crash_loops),
    "pods that never go": ("held-without-running", never_gone),
    "GPUs that fell off": ("unhealthy-gpus", fallen_off),
    "network cards all given away": ("starved-of-cpu", no_more_nics),
    "disks full of data sets": ("starved-of-cpu", no_scratch),
    "a queue on hold": ("quota-holds-back", queue_on_hold),
    "a queue that is not there": ("quota-holds-back", queue_that_is_not_there),
    "a namespace's quota is used up": ("quota-holds-back", namespace_full),
}  # fmt: skip


def ray_that_grows(c: Cluster) -> None:
    """A Ray cluster that computes with its least number of workers, and asks for one more."""
    names = c.nodes(4)
    c.busy(names[3:])
    c.gang("tune", running=names[:3], waiting=1, gpus=8, label="ray.io/cluster")
    group = {"groupName": "gpus", "replicas": 4, "minReplicas": 2, "maxReplicas": 8}
    c.objects.append({"apiVersion": "ray.io/v1", "kind": "RayCluster",
                      "metadata": {"name": "tune", "namespace": "research"},
                      "spec": {"enableInTreeAutoscaling": True,
                               "workerGroupSpecs": [group]}})  # fmt: skip


def elastic_torch(c: Cluster) -> None:
    """An elastic PyTorchJob with two of at most four workers."""
    names = c.nodes(3)
    c.busy(names[2:])
    c.gang("elastic", running=names[:2], waiting=2, gpus=8)
    c.objects.append({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
                      "metadata": {"name": "elastic", "namespace": "research"},
                      "spec": {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}}})  # fmt: skip


def ranks_that_are_done(c: Cluster) -> None:
    """A JobSet of which some pods have succeeded and others go on, in a full cluster."""
    names = c.nodes(4)
    c.gang("eval", running=names[:2], waiting=0, gpus=8, label="jobset.sigs.k8s.io/jobset-name")
    labels = {"jobset.sigs.k8s.io/jobset-name": "eval"}
    for name in names[:2]:
        c.pod(gpus=8, node=name, ran=300, phase="Succeeded", labels=labels)
    c.busy(names[2:], (4, 2))
    c.pod(gpus=4, waited=12, prefix="next")


def just_started(c: Cluster) -> None:
    """Pods that pull their image since two minutes, and one that is on its way out."""
    names = c.nodes(4)
    c.busy(names[2:])
    for name in names[:2]:
        c.pod(gpus=8, node=name, ran=2, waited=3, prefix="new")
        status = c.objects[-1]["status"]
        status["phase"] = "Pending"
        status["containerStatuses"] = [
            {"name": "main", "ready": False, "restartCount": 0,
             "state": {"waiting": {"reason": "ContainerCreating"}}}]  # fmt: skip
    c.pod(gpus=8, waited=8, prefix="next")


STRANGE_HEALTHY: dict[str, Callable[[Cluster], None]] = {
    "a Ray cluster that grows": ray_that_grows, "an elastic job": elastic_torch,
    "ranks that are done": ranks_that_are_done, "pods that just started": just_started,
}  # fmt: skip
