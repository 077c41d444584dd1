"""Clusters that say by themselves why GPUs are withheld: by events, conditions, checks, settings.

They are what was missed of twenty that were written with their causes before the doctor saw any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.queue.planted_clusters import GPU, Cluster
from tests.queue.withheld_clusters import add, cluster_queue, kueue_job


def event(c: Cluster, kind: str, name: str, reason: str, message: str) -> None:
    about = {"kind": kind, "name": name} | ({} if kind == "Node" else {"namespace": "research"})
    c.objects.append({
        "kind": "Event", "involvedObject": about, "reason": reason, "message": message,
        "metadata": {"name": f"{name}.{len(c.objects)}", "namespace": "default"},
    })  # fmt: skip


def of_node(c: Cluster, name: str) -> dict[str, Any]:
    return next(one for one in c.objects if one["kind"] == "Node"
                and one["metadata"]["name"] == name)  # fmt: skip


def last_pod(c: Cluster) -> dict[str, Any]:
    return [one for one in c.objects if one["kind"] == "Pod"][-1]


def failing_gpu(c: Cluster, *, message: str = "NVRM: Xid (PCI:0000:4f:00): 79, pid=1") -> None:
    """A node whose eight GPUs nobody has, since one has fallen off the bus."""
    names = c.nodes(3)
    for name in names[:2]:
        c.pod(gpus=8, node=name)
    event(c, "Node", names[2], "XidCriticalError", message)


def program_fault(c: Cluster) -> None:
    """An Xid that a program's own error brings about."""
    failing_gpu(c, message="NVRM: Xid (PCI:0000:07:00): 31, pid=812, name=python, MMU Fault")


def never_offered(c: Cluster, *, plugin: str = "true") -> None:
    """Two nodes that should be split and offer nothing."""
    c.pod(gpus=8, node=c.node())
    for name in c.nodes(2, 0):
        of_node(c, name)["metadata"]["labels"] |= {
            "nvidia.com/gpu.count": "8", "nvidia.com/mig.config": "all-2g.20gb",
            "nvidia.com/gpu.deploy.device-plugin": plugin,
        } | ({"nvidia.com/mig.config.state": "failed"} if plugin == "true" else {})  # fmt: skip


def switched_off(c: Cluster, *, devices: str = "") -> None:
    names = c.nodes(2)
    for name in names:
        c.pod(gpus=8, node=name)
        container = last_pod(c)["spec"]["containers"][0]
        container["env"] = [{"name": "CUDA_VISIBLE_DEVICES", "value": devices}]


def ray_head(c: Cluster) -> None:
    name = c.node()
    for kind, group in (("head", "headgroup"), ("worker", "gpus")):
        c.pod(gpus=4, node=name, labels={
            "ray.io/cluster": "rl", "ray.io/node-type": kind, "ray.io/group": group})  # fmt: skip
    add(c, "ray.io/v1", "RayCluster", "rl",
        {"headGroupSpec": {"rayStartParams": {"num-gpus": "0"}}}, namespace="research")  # fmt: skip


def limit_range(c: Cluster, *, ended: bool = False) -> None:
    c.nodes(2)
    kueue_job(c, "big", 8, workload=False)
    c.objects[-1]["metadata"].pop("labels")
    c.objects[-1]["spec"]["suspend"] = False
    if ended:
        c.objects[-1]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    event(c, "Job", "big", "FailedCreate", 'Error creating: pods "big-x" is forbidden: maximum'
          " nvidia.com/gpu usage per Pod is 4, but limit is 8")  # fmt: skip


def admission_check(c: Cluster, *, state: str = "Pending") -> None:
    c.nodes(2)
    cluster_queue(c, "small", 16)
    kueue_job(c, "waits", 8)
    workload = c.objects[-1]
    workload["status"] = {
        "admission": {"clusterQueue": "small"},
        "admissionChecks": [{"name": "dws", "state": state, "message": "no capacity yet"}],
        "conditions": [{"type": "QuotaReserved", "status": "True"}],
    }


def one_rack(c: Cluster) -> None:
    c.nodes(4)
    cluster_queue(c, "small", 32)
    kueue_job(c, "llm", 8, pods=3)
    c.objects[-1]["status"]["conditions"][0]["message"] = (
        'couldn\'t assign flavors to pod set main: topology "default" allows to fit only 2 out of'
        " 3 pod(s)"
    )


def too_few_members(c: Cluster, *, least: int = 4) -> None:
    c.nodes(4)
    for _ in range(3):
        c.pod(gpus=8, annotations={"scheduling.k8s.io/group-name": "gang"})
    add(c, "scheduling.volcano.sh/v1beta1", "PodGroup", "gang", {"minMember": least},
        namespace="research", status={"phase": "Inqueue"})  # fmt: skip


def closed_queue(c: Cluster) -> None:
    c.nodes(2)
    add(c, "scheduling.volcano.sh/v1beta1", "Queue", "night", {"weight": 1},
        status={"state": "Closed"})  # fmt: skip
    c.pod(gpus=8, annotations={"scheduling.volcano.sh/queue-name": "night"})


def yunikorn(c: Cluster, *, most: int = 8) -> None:
    names = c.nodes(3)
    c.objects.append({
        "kind": "ConfigMap", "metadata": {"name": "yunikorn-configs", "namespace": "yunikorn"},
        "data": {"queues.yaml": "partitions: [{name: default, queues: [{name: root, queues: [{name:"
                 f" research, resources: {{max: {{{GPU}: {most}}}}}}}]}}]}}]\n"},
    })  # fmt: skip
    for place in (names[0], None):
        c.pod(gpus=8, node=place)
        last_pod(c)["spec"]["schedulerName"] = "yunikorn"


def attached_elsewhere(c: Cluster, *, ran: float = 30) -> None:
    name = c.pod(gpus=8, node=c.node(), ran=ran, waited=ran)
    last_pod(c)["status"] |= {"phase": "Pending", "containerStatuses": [
        {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}]}  # fmt: skip
    event(c, "Pod", name, "FailedAttachVolume", 'Multi-Attach error for volume "pvc-7" Volume is'
          " already used by pod(s) other")  # fmt: skip


def no_scale_up(c: Cluster, *, reason: str = "NotTriggerScaleUp") -> None:
    c.pod(gpus=8, node=c.node())
    name = c.pod(gpus=8)
    event(c, "Pod", name, reason, "pod didn't trigger scale-up: 1 max node group size reached")


def patient_class(c: Cluster, *, policy: str = "Never") -> None:
    c.pod(gpus=8, node=c.node())
    c.pod(gpus=8, waited=600)
    last_pod(c)["spec"] |= {"priority": 1000, "preemptionPolicy": policy}


TOLD: dict[str, tuple[str, float, str, Callable[[Cluster], None]]] = {
    "a GPU off the bus": ("unhealthy-gpus", 8, "Xid 79", failing_gpu),
    "MIG that failed": ("unhealthy-gpus", 16, "nvidia.com/mig.config.state", never_offered),
    "no visible devices": ("switched-off", 16, "CUDA_VISIBLE_DEVICES", switched_off),
    "a Ray head": ("switched-off", 4, "num-gpus", ray_head),
    "a LimitRange": ("held-as-told", 8, "LimitRange", limit_range),
    "an admission check": ("held-as-told", 8, "dws is Pending", admission_check),
    "one rack": ("held-as-told", 24, "2 out of 3", one_rack),
    "a gang too large": ("held-as-told", 24, "starts 4 pods", too_few_members),
    "Volcano's closed queue": ("quota-holds-back", 8, "night is closed", closed_queue),
    "YuniKorn's queue": ("quota-holds-back", 8, "root.research", yunikorn),
    "a volume attached elsewhere": (
        "held-without-running",
        8,
        "Multi-Attach error",
        attached_elsewhere,
    ),
    "no scale-up": ("not-scaled-up", 8, "max node group size", no_scale_up),
    "a patient class": ("may-not-preempt", 8, "preemptionPolicy Never", patient_class),
}
"""Cause, GPUs lost, what the summary has in it, and the cluster."""
TOLD_HEALTHY: dict[str, Callable[[Cluster], None]] = {
    "a program's Xid": program_fault,
    "a plug-in that is not to run": lambda c: never_offered(c, plugin="false"),
    "visible devices": lambda c: switched_off(c, devices="0,1"),
    "a job that was refused and has ended since": lambda c: limit_range(c, ended=True),
    "a check that is passed": lambda c: admission_check(c, state="Ready"),
    "a gang that waits for room": lambda c: too_few_members(c, least=3),
    "YuniKorn's queue with room": lambda c: yunikorn(c, most=64),
    "a volume that is still detached": lambda c: attached_elsewhere(c, ran=5),
    "a node is coming": lambda c: no_scale_up(c, reason="TriggeredScaleUp"),
    "a class that may preempt": lambda c: patient_class(c, policy="PreemptLowerPriority"),
}
