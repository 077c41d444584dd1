"""Clusters in which something withholds GPUs that are free: thirteen with a fault, six without.

They are what was missed of thirty-four written with their causes before the doctor saw any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.queue.foreign_clusters import asks, pod_of
from tests.queue.planted_clusters import GPU, Cluster, stamp

QUEUE = "kueue.x-k8s.io/queue-name"
HOST = "kubernetes.io/hostname"


def add(c: Cluster, api: str, kind: str, name: str, spec: dict[str, Any], *, namespace: str = "",
        status: dict[str, Any] | None = None, **about: Any) -> None:  # fmt: skip
    where = {"namespace": namespace} if namespace else {}
    c.objects.append({
        "apiVersion": api, "kind": kind, "spec": spec, "status": status or {},
        "metadata": {"name": name, "creationTimestamp": stamp(400), **where, **about},
    })  # fmt: skip


def cluster_queue(c: Cluster, name: str, gpus: int) -> None:
    flavor = {"name": "all", "resources": [{"name": GPU, "nominalQuota": str(gpus)}]}
    add(c, "kueue.x-k8s.io/v1beta2", "ClusterQueue", name,
        {"resourceGroups": [{"coveredResources": [GPU], "flavors": [flavor]}]})  # fmt: skip
    add(c, "kueue.x-k8s.io/v1beta2", "LocalQueue", f"{name}-jobs", {"clusterQueue": name},
        namespace="research")  # fmt: skip


def kueue_job(c: Cluster, name: str, gpus: int, node: str = "", *, workload: bool = True,
              pods: int = 1, queue: str = "small-jobs") -> None:  # fmt: skip
    """A Job of Kueue: suspended and without pods, or with one that does not name the queue."""
    limits = {GPU: str(gpus)}
    containers = [{"name": "w", "resources": {"requests": {"cpu": "8", **limits},
                                              "limits": limits}}]  # fmt: skip
    template = {"spec": {"containers": containers}}
    add(c, "batch/v1", "Job", name,
        {"suspend": not node, "parallelism": pods, "completions": pods, "template": template},
        namespace="research", labels={QUEUE: queue})  # fmt: skip
    if workload:
        admitted = {"admission": {"clusterQueue": "small"}} if node else {"conditions": [
            {"type": "QuotaReserved", "status": "False", "reason": "Pending"}]}  # fmt: skip
        add(c, "kueue.x-k8s.io/v1beta2", "Workload", f"job-{name}",
            {"queueName": queue, "podSets": [{"name": "main", "count": pods,
                                              "template": template}]},
            namespace="research", status=admitted,
            ownerReferences=[{"kind": "Job", "name": name}])  # fmt: skip
    if node:
        c.pod(gpus=gpus, node=node, ran=300, owner=("Job", name))


def suspended(c: Cluster, *, workload: bool = True) -> None:
    """A quota that is full of pods which do not name it, and suspended jobs without any."""
    names = c.nodes(6)
    cluster_queue(c, "small", 16)
    cluster_queue(c, "others", 32)
    for number in range(5):
        node = names[number] if number < 2 else ""
        kueue_job(c, f"fit-{number}", 8, node, workload=workload)


def gangs_suspended(c: Cluster) -> None:
    """The same with jobs of two pods each, of which two would start."""
    names = c.nodes(6)
    cluster_queue(c, "small", 16)
    for number in range(2):
        kueue_job(c, f"one-{number}", 8, names[number])
    for number in range(3):
        kueue_job(c, f"two-{number}", 8, pods=2)


def nameless_queue(c: Cluster) -> None:
    c.busy(c.nodes(3)[:1])
    cluster_queue(c, "small", 24)
    kueue_job(c, "typo", 8, queue="smal-jobs")


def volcano_without_pods(c: Cluster) -> None:
    """Volcano makes no pods of what does not enter its queue."""
    api, names = "scheduling.volcano.sh/v1beta1", c.nodes(6)
    add(c, api, "Queue", "cv", {"capability": {GPU: "16"}}, status={"state": "Open"})
    for number in range(5):
        running = number < 2
        group = f"seg-{number}"
        add(c, api, "PodGroup", group, {"minMember": 2, "queue": "cv", "minResources": {GPU: "8"}},
            namespace="research",
            status={"phase": "Running" if running else "Pending"})  # fmt: skip
        for _ in range(2 * running):
            c.pod(gpus=4, node=names[number], ran=500,
                  annotations={"scheduling.k8s.io/group-name": group})  # fmt: skip


def one_a_node(c: Cluster) -> None:
    """Replicas that insist on nodes of their own, more of them than there are nodes."""
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": "tts"}}, "topologyKey": HOST}]}}  # fmt: skip
    for name in c.nodes(5):
        c.pod(gpus=2, node=name, ran=900, prefix="tts", labels={"app": "tts"}, affinity=apart)
        c.busy([name], (1,), keep=4)
    for _ in range(4):
        c.pod(gpus=2, prefix="tts", labels={"app": "tts"}, affinity=apart)


def host_port(c: Cluster) -> None:
    """Servers with a port of their node."""
    for name in [*c.nodes(4), "", "", ""]:
        c.pod(gpus=2, node=name or None, ran=900, prefix="server")
        spec = pod_of(c)["spec"]
        spec["hostNetwork"] = True
        spec["containers"][0]["ports"] = [{"containerPort": 9000}]


def uneven(c: Cluster) -> None:
    c.busy(c.nodes(4), (2,), keep=4)
    for _ in range(3):
        c.pod(gpus=1, prefix="even")
        pod_of(c)["status"]["conditions"][0]["message"] = (
            "0/4 nodes are available: 4 node(s) didn't match pod topology spread constraints."
        )


def claims_of_more(c: Cluster) -> None:
    """Claims of devices larger than all that there are."""
    api = "resource.k8s.io/v1"
    names = c.nodes(3, 0)
    wants = "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('100Gi'))"
    for name in names:
        devices = [{"name": f"gpu-{number}"} for number in range(4)]
        add(c, api, "ResourceSlice", f"{name}-gpus",
            {"driver": "gpu.nvidia.com", "nodeName": name, "devices": devices})  # fmt: skip
    asked = {"deviceClassName": "gpu.nvidia.com", "selectors": [{"cel": {"expression": wants}}]}
    add(c, api, "ResourceClaimTemplate", "large", {"spec": {"devices": {"requests": [
        {"name": "gpu", "exactly": asked}]}}}, namespace="research")  # fmt: skip
    for _ in range(3):
        c.pod(gpus=0, cores=8)
        pod = pod_of(c)
        pod["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimTemplateName": "large"}]
        pod["status"]["conditions"][0]["message"] = (
            "0/3 nodes are available: 3 cannot allocate all claims."
        )


def hami(c: Cluster, cores: int, waiting: int) -> None:
    gpu = '{"id":"GPU-%d","count":10,"devmem":24576,"devcore":100,"health":true}'
    noted = "[" + ",".join(gpu % number for number in range(2)) + "]"
    names = c.nodes(3, 20, model="NVIDIA-L4")
    for one in c.objects:
        if one["kind"] == "Node":
            one["metadata"]["annotations"] = {"hami.io/node-nvidia-register": noted}
    for name in [*names, *names, *([""] * waiting)]:
        c.pod(gpus=1, node=name or None, cores=2, ran=800)
        asks(c, **{"nvidia.com/gpumem": "4096", "nvidia.com/gpucores": str(cores)})


def hami_cores(c: Cluster) -> None:
    """Each pod asks for all compute of a GPU and a sixth of its memory."""
    hami(c, 100, 4)


def slices_as_gpus(c: Cluster) -> None:
    """Training that asks for four replicas, each a quarter of the same GPU."""
    for name in c.nodes(2, 32, labels={"nvidia.com/gpu.replicas": "4"}):
        for _ in range(8):
            c.pod(gpus=4, node=name, cores=8)


def evicted_by_events(c: Cluster) -> None:
    """A StatefulSet whose pods others evict every quarter of an hour: only events tell it."""
    for number, node in enumerate(c.nodes(3)):
        c.pod(gpus=8, node=node, ran=1, waited=2, owner=("StatefulSet", "low"))
        pod_of(c)["metadata"]["name"] = f"low-{number}"
        starts = [(minutes, "Scheduled") for minutes in (50, 34, 18)]
        for minutes, reason in [*starts, *((one - 15, "Preempted") for one, _ in starts)]:
            c.objects.append({
                "apiVersion": "v1", "kind": "Event", "reason": reason,
                "metadata": {"name": f"low-{number}.{minutes}", "namespace": "research"},
                "involvedObject": {"kind": "Pod", "namespace": "research",
                                   "name": f"low-{number}"},
                "lastTimestamp": stamp(minutes),
            })  # fmt: skip


def other_pool(c: Cluster) -> None:
    """Half of the nodes are another team's, and idle."""
    c.busy(c.nodes(4, labels={"team": "a"}))
    c.nodes(4, labels={"team": "b"})
    for _ in range(4):
        c.pod(gpus=8, selector={"team": "a"})


WITHHELD: dict[str, tuple[str, Callable[[Cluster], None]]] = {
    "suspended jobs": ("quota-holds-back", suspended),
    "suspended jobs without workloads": (
        "quota-holds-back", lambda c: suspended(c, workload=False)),
    "suspended gangs": ("quota-holds-back", gangs_suspended),
    "a queue by a wrong name": ("quota-holds-back", nameless_queue),
    "Volcano's groups without pods": ("quota-holds-back", volcano_without_pods),
    "anti-affinity": ("kept-apart", one_a_node),
    "a port of the host": ("kept-apart", host_port),
    "topology spread": ("kept-apart", uneven),
    "claims that no device meets": ("no-node-admits", claims_of_more),
    "all compute of shared GPUs": ("starved-of-cpu", hami_cores),
    "time-slices as GPUs": ("replicas-as-gpus", slices_as_gpus),
    "evictions by events": ("preemption-thrash", evicted_by_events),
    "another team's nodes": ("bound-to-some-nodes", other_pool),
}  # fmt: skip


def suspended_and_full(c: Cluster) -> None:
    """Jobs are suspended, and no GPU is free for them."""
    names = c.nodes(2)
    cluster_queue(c, "small", 16)
    for number in range(4):
        kueue_job(c, f"fit-{number}", 8, [*names, "", ""][number])


def paused(c: Cluster) -> None:
    """A job that its owner has suspended, and one whose workload is not active."""
    c.nodes(2)
    cluster_queue(c, "small", 0)
    kueue_job(c, "later", 8)
    c.objects[-1]["spec"]["active"] = False
    kueue_job(c, "never", 8, workload=False)
    del c.objects[-1]["metadata"]["labels"]


def one_port_each(c: Cluster) -> None:
    for number, name in enumerate(c.nodes(2, 4) * 4):
        c.pod(gpus=1, node=name, ran=900, prefix="server")
        ports = [{"containerPort": 80, "hostPort": 9000 + number}]
        pod_of(c)["spec"]["containers"][0]["ports"] = ports
    c.pod(gpus=1, prefix="server")


def hami_shared(c: Cluster) -> None:
    hami(c, 20, 0)


def one_slice_each(c: Cluster) -> None:
    for name in c.nodes(1, 16, labels={"nvidia.com/gpu.replicas": "4"}):
        for _ in range(16):
            c.pod(gpus=1, node=name, cores=1)


def few_for_trials(c: Cluster) -> None:
    """One node of eight is another pool's, and idle."""
    c.busy(c.nodes(7, labels={"team": "a"}))
    c.nodes(1, labels={"team": "trials"})
    c.pod(gpus=8, selector={"team": "a"})


WITHHELD_HEALTHY: dict[str, Callable[[Cluster], None]] = {
    "suspended and full": suspended_and_full,
    "paused": paused,
    "ports of their own": one_port_each,
    "GPUs that HAMi shares": hami_shared,
    "a slice each": one_slice_each,
    "a node for trials": few_for_trials,
}
"""In none of them anything is to be mended."""
