"""Clusters by what public reports tell of them: each with one fault, and others that look like it.

They are what was missed of forty-six that were written with their causes before the doctor saw
any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.queue.planted_clusters import GPU, Cluster, stamp
from tests.queue.told_clusters import event, last_pod, of_node
from tests.queue.withheld_clusters import add, cluster_queue, kueue_job

KUEUE, VOLCANO = "kueue.x-k8s.io/v1beta2", "scheduling.volcano.sh/v1beta1"


def refused(c: Cluster, *, reason: str = "TopologyAffinityError", later: bool = False) -> None:
    """kubernetes #130145 and pytorch/ci-infra #696: kubelet refuses pods, one after the other."""
    node = c.node()
    for number in range(4):
        c.pod(gpus=4, node=node, phase="Failed", owner=("Job", "ddp"), waited=60 - number, ran=50)
        last_pod(c)["status"] = {"phase": "Failed", "reason": reason, "message": "Pod was rejected"}
    if later:
        c.pod(gpus=4, node=node, owner=("Job", "ddp"), waited=10, ran=10)


def left_group(c: Cluster, *, minutes: float = 300) -> None:
    """volcano #2633: groups of finished jobs keep what they were let in for."""
    c.pod(gpus=8, node=c.nodes(3)[0])
    for name, phase in (("gone", "Inqueue"), ("next", "Pending")):
        add(c, VOLCANO, "PodGroup", name, {"minMember": 1, "minResources": {GPU: "8"}},
            namespace="research", status={"phase": phase})  # fmt: skip
        c.objects[-1]["metadata"]["creationTimestamp"] = stamp(minutes)


def left_claim(c: Cluster, *, user: str = "deleted") -> None:
    """A claim that is reserved for a pod which is gone."""
    names = [c.node(0) for _ in range(2)]
    for name in names:
        devices = [{"name": f"gpu-{number}"} for number in range(8)]
        add(c, "resource.k8s.io/v1", "ResourceSlice", name,
            {"driver": "gpu.nvidia.com", "nodeName": name, "devices": devices})  # fmt: skip
    wants = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 8}}
    for name, given in (("old", names[0]), ("new", "")):
        results = [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": given}] * 8
        status: dict[str, Any] = {"allocation": {"devices": {"results": results}},
                                  "reservedFor": [{"resource": "pods", "name": user}]}  # fmt: skip
        add(c, "resource.k8s.io/v1", "ResourceClaim", name, {"devices": {"requests": [wants]}},
            namespace="research", status=status if given else {})  # fmt: skip
    if user == "running":
        c.pod(gpus=0, node=names[0])
        last_pod(c)["metadata"]["name"] = user
        last_pod(c)["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimName": "old"}]
        return
    c.pod(gpus=0)
    last_pod(c)["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimName": "new"}]


def strict(c: Cluster, *, strategy: str = "StrictFIFO") -> None:
    """kueue #4809: whoever is first keeps out who would fit."""
    names = c.nodes(4)
    cluster_queue(c, "small", 32)
    c.objects[-2]["spec"]["queueingStrategy"] = strategy
    kueue_job(c, "runs", 8, names[0])
    kueue_job(c, "a-large", 8, pods=4)
    kueue_job(c, "b-small", 4)
    if strategy != "StrictFIFO":
        c.objects.pop()


def guarded(c: Cluster, *, allowed: int = 0) -> None:
    """A drain that a disruption budget never lets end."""
    c.pod(gpus=8, node=c.node())
    c.pod(gpus=2, node=c.node(closed=True), labels={"app": "llm"})
    c.pod(gpus=6)
    add(c, "policy/v1", "PodDisruptionBudget", "llm", {"selector": {"matchLabels": {"app": "llm"}}},
        namespace="research", status={"disruptionsAllowed": allowed})  # fmt: skip


def full_disk(c: Cluster) -> None:
    c.pod(gpus=8, node=c.node())
    node = of_node(c, c.node())
    node["spec"]["taints"] = [{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}]
    c.pod(gpus=8)


def pulling(c: Cluster, *, ran: float = 30) -> None:
    name = c.pod(gpus=8, node=c.node(), ran=ran, waited=ran)
    last_pod(c)["status"] |= {"phase": "Pending", "containerStatuses": [
        {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}]}  # fmt: skip
    event(c, "Pod", name, "Pulling", 'Pulling image "r/nemo:25.04"')


def split(c: Cluster) -> None:
    c.pod(gpus=8, node=c.node())
    c.node(0, slices={"1g.10gb": 14})
    c.pod(gpus=2)


def unlaunched(c: Cluster, *, launched: str = "Unknown") -> None:
    """Karpenter's NodeClaim for which the cloud has no instance."""
    c.pod(gpus=8, node=c.node())
    c.pod(gpus=8)
    said = {"reason": "LaunchFailed", "message": "creating instance, InsufficientInstanceCapacity"}
    add(c, "karpenter.sh/v1", "NodeClaim", "p5", {"resources": {"requests": {GPU: "8"}}},
        status={"conditions": [{"type": "Launched", "status": launched, **said}]})  # fmt: skip


def reclaimed(c: Cluster, *, times: int = 4) -> None:
    node = c.node()
    for number in range(times):
        ago = 60.0 * (number + 1)
        c.pod(gpus=8, node=node, phase="Failed", owner=("Job", "llm"), ran=ago, evicted=ago - 40)
        last_pod(c)["status"]["conditions"][-1]["reason"] = "TerminationByKubelet"


def memory_quota(c: Cluster, *, used: str = "1500Gi") -> None:
    """A ResourceQuota of memory that keeps out pods with GPUs, after its events are gone."""
    c.pod(gpus=8, node=c.nodes(2)[0])
    told = {"requests.memory": "1600Gi"}
    add(c, "v1", "ResourceQuota", "all", {"hard": told}, namespace="research",
        status={"hard": told, "used": {"requests.memory": used}})  # fmt: skip
    asked = {"limits": {GPU: "8", "memory": "512Gi"}}
    add(c, "batch/v1", "Job", "llm", {"template": {"spec": {"containers": [
        {"name": "w", "resources": asked}]}}}, namespace="research")  # fmt: skip


def over_quota(c: Cluster, *, message: str = "Non-preemptible workload is over quota. Use") -> None:
    c.pod(gpus=8, node=c.nodes(2)[0])
    c.pod(gpus=8)
    last_pod(c)["status"]["conditions"][0]["message"] = message


def grace(c: Cluster, *, seconds: int = 86_400) -> None:
    c.pod(gpus=8, node=c.node())
    last_pod(c)["metadata"] |= {
        "deletionTimestamp": stamp(40 - seconds / 60), "deletionGracePeriodSeconds": seconds,
    }  # fmt: skip
    c.pod(gpus=8, waited=45)


def evicted_again(c: Cluster, *, count: int = 9) -> None:
    c.nodes(1)
    cluster_queue(c, "small", 8)
    kueue_job(c, "slow", 8)
    c.objects[-1]["status"] |= {"requeueState": {"count": count}, "conditions": [
        {"type": "Evicted", "status": "True", "reason": "PodsReadyTimeout",
         "message": "Exceeded the PodsReady timeout"}]}  # fmt: skip


def other_namespace(c: Cluster) -> None:
    c.nodes(1)
    cluster_queue(c, "small", 8)
    kueue_job(c, "job", 8)
    c.objects[-1]["status"]["conditions"][0] |= {
        "reason": "Inadmissible", "message": "namespace doesn't match ClusterQueue selector",
    }  # fmt: skip


def rolling(c: Cluster, *, waited: float = 200) -> None:
    node = c.node()
    for part, place in (("old", node), ("new", None)):
        c.pod(gpus=8, node=place, owner=("ReplicaSet", f"serve-{part}"), waited=waited, ran=500,
              labels={"pod-template-hash": part})  # fmt: skip


def daemon(c: Cluster, *, gpus: int = 1) -> None:
    for node in c.nodes(2):
        c.pod(gpus=gpus, node=node, owner=("DaemonSet", "gpu-burn"), cores=1, gigabytes=1)
    c.pod(gpus=8)
    if not gpus:
        c.objects.pop()


def numa_plugin(c: Cluster) -> None:
    """A plug-in of kube-scheduler has its own reason, which no rule counts."""
    over_quota(c, message="0/2 nodes are available: 2 node(s) lack NUMA alignment. preemption: x")


def launcher(c: Cluster, *, waited: float = 90) -> None:
    """The workers of an MPIJob wait for a launcher that asks for no GPU."""
    labels = {"training.kubeflow.org/job-name": "hvd"}
    c.pod(gpus=8, node=c.node(), labels=labels, waited=waited, ran=waited)
    c.pod(gpus=0, cores=500, labels=labels, waited=waited)


def inactive(c: Cluster, *, status: str = "False") -> None:
    c.nodes(1)
    cluster_queue(c, "small", 8)
    c.objects[-2]["status"] = {
        "conditions": [
            {"type": "Active", "status": status, "message": "references missing ResourceFlavor(s)"}
        ]
    }
    kueue_job(c, "job", 8)


def no_runtime(c: Cluster) -> None:
    c.nodes(1)
    kueue_job(c, "job", 8, workload=False)
    c.objects[-1]["spec"]["suspend"] = False
    event(c, "Job", "job", "FailedCreate", 'Error creating: pods "j" is forbidden: pod rejected:'
          ' RuntimeClass "nvidia" not found')  # fmt: skip


def unexplained(c: Cluster, *, waited: float = 90) -> None:
    c.nodes(1)
    c.pod(gpus=8, waited=waited)
    last_pod(c)["status"]["conditions"][0]["message"] = "0/1 nodes: 1 Insufficient nvidia.com/gpu"


def out_of_disk(c: Cluster, *, times: int = 4) -> None:
    """kubelet evicts a job again and again, by the status that it had before conditions."""
    node = c.node()
    for number in range(times):
        ago = 60 * (number + 1)
        c.pod(gpus=8, node=node, phase="Failed", owner=("Job", "llm"), ran=ago)
        last_pod(c)["status"] |= {
            "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage.",
            "containerStatuses": [{"state": {"terminated": {"finishedAt": stamp(ago - 40)}}}],
        }  # fmt: skip


def restarted(c: Cluster, *, times: int = 30) -> None:
    c.pod(gpus=8, node=c.node(), ran=600)
    last_pod(c)["status"]["containerStatuses"] = [
        {"name": "main", "restartCount": times, "state": {"running": {}}, "lastState": {
            "terminated": {"reason": "OOMKilled", "exitCode": 137, "startedAt": stamp(30),
                           "finishedAt": stamp(15)}}}]  # fmt: skip


def renamed(c: Cluster) -> None:
    node = of_node(c, c.node())
    for amounts in (node["status"]["allocatable"], node["status"]["capacity"]):
        amounts[f"{GPU}.shared"] = str(4 * int(amounts.pop(GPU)))
    c.pod(gpus=1)


Plant = Callable[[Cluster], None]
REPORTED: dict[str, tuple[str, float, str, Plant]] = {
    "one NUMA node": ("refused-by-nodes", 4, "TopologyAffinityError", refused),
    "devices that are not there": (
        "refused-by-nodes", 4, "UnexpectedAdmissionError",
        lambda c: refused(c, reason="UnexpectedAdmissionError"),
    ),
    "a group without pods": ("reserved-for-nobody", 8, "PodGroup research/gone", left_group),
    "a claim without a pod": ("reserved-for-nobody", 8, "ResourceClaim research/old", left_claim),
    "a strict queue": ("strict-order", 4, "StrictFIFO", strict),
    "a drain": ("closed-nodes", 6, "PodDisruptionBudget research/llm", guarded),
    "a full disk": ("closed-nodes", 8, "DiskPressure", full_disk),
    "a large image": ("held-without-running", 8, "still pulling image r/nemo:25.04", pulling),
    "GPUs in slices": ("mig-mismatch", 2, "2 whole GPUs are waited for", split),
    "no instance": ("not-scaled-up", 8, "InsufficientInstanceCapacity", unlaunched),
    "spot nodes": ("preemption-thrash", 5.8, "ended with its node", reclaimed),
    "a quota of memory": ("quota-holds-back", 8, "1500 GiB of requests.memory", memory_quota),
    "a scheduler's quota": ("held-as-told", 8, "over quota", over_quota),
    "a plug-in's reason": ("held-as-told", 8, "lack NUMA alignment", numa_plugin),
    "a day of grace": ("held-without-running", 8, "a grace period of", grace),
    "pods not ready in time": ("held-as-told", 8, "evicted a workload 9 times", evicted_again),
    "another namespace": ("held-as-told", 8, "ClusterQueue selector", other_namespace),
    "a rolling update": ("rolling-update-waits", 8, "research/serve waits", rolling),
    "a launcher without a node": ("no-gang", 8, "has no node for research/train", launcher),
    "an inactive queue": ("quota-holds-back", 8, "missing ResourceFlavor", inactive),
    "no runtime": ("held-as-told", 8, "RuntimeClass", no_runtime),
    "room by all that is counted": ("unexplained-wait", 8, "1 Insufficient", unexplained),
    "a disk that fills": ("preemption-thrash", 5.8, "ephemeral-storage", out_of_disk),
    "out of memory": ("held-without-running", 8, "30 times, last after 15.0 min (OOM", restarted),
    "another name": ("no-node-admits", 1, "where nodes offer nvidia.com/gpu.shared", renamed),
    "a daemon with GPUs": ("daemon-holds-gpus", 8, "gpu-burn holds 2 GPUs", daemon),
}  # fmt: skip
"""Cause, GPUs lost, what the summary has in it, and the cluster."""
NOT_REPORTED: dict[str, Plant] = {
    "a refusal that is over": lambda c: refused(c, later=True),
    "a group that is new": lambda c: left_group(c, minutes=8),
    "a claim in use": lambda c: left_claim(c, user="running"),
    "a queue without its small job": lambda c: strict(c, strategy="BestEffortFIFO"),
    "an image that comes": lambda c: pulling(c, ran=6),
    "few evictions": lambda c: reclaimed(c, times=2),
    "a quota with room": lambda c: memory_quota(c, used="800Gi"),
    "half a minute of grace": lambda c: grace(c, seconds=30 * 60),
    "one eviction": lambda c: evicted_again(c, count=1),
    "an update under way": lambda c: rolling(c, waited=6),
    "a launcher that has just come": lambda c: launcher(c, waited=3),
    "an active queue": lambda c: inactive(c, status="True"),
    "a pod of ten minutes": lambda c: unexplained(c, waited=10),
    "few restarts": lambda c: restarted(c, times=2),
    "few evictions by kubelet": lambda c: out_of_disk(c, times=2),
    "a daemon without GPUs": lambda c: daemon(c, gpus=0),
}
