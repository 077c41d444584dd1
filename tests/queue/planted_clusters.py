"""Clusters as kubectl tells of them: twenty-four with one fault each, twelve with none.

Each is drawn with a seed: what runs beside the fault, where, for how long.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

NOW = datetime(2026, 11, 2, 14, 0, tzinfo=UTC)
GPU = "nvidia.com/gpu"


def stamp(minutes_ago: float) -> str:
    return (NOW - timedelta(minutes=minutes_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Cluster:
    """Objects that are added one by one; nodes know what is free of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.objects: list[dict[str, Any]] = []
        self.samples: list[tuple[str, str, float]] = []
        """Namespace, pod, utilisation in per cent."""
        self.free: dict[str, int] = {}
        self.count = 0

    # -- nodes

    def nodes(self, number: int, gpus: int = 8, *, model: str = "NVIDIA-H100-80GB-HBM3",
              cores: int = 192, gigabytes: int = 2048, **more: Any) -> list[str]:  # fmt: skip
        return [self.node(gpus, model=model, cores=cores, gigabytes=gigabytes, **more)
                for _ in range(number)]  # fmt: skip

    def node(self, gpus: int = 8, *, model: str = "NVIDIA-H100-80GB-HBM3", cores: int = 192,
             gigabytes: int = 2048, slices: dict[str, int] | None = None, closed: bool = False,
             ready: bool = True, taint: str = "", labels: dict[str, str] | None = None
             ) -> str:  # fmt: skip
        name = f"gpu-{len(self.free):03d}"
        self.free[name] = gpus
        amounts = {"cpu": f"{cores * 1000 - 350}m", "memory": f"{gigabytes * 1024 - 900}Mi",
                   "pods": "110", "ephemeral-storage": "3568Gi"}  # fmt: skip
        if gpus:
            amounts[GPU] = str(gpus)
        amounts |= {f"nvidia.com/mig-{name}": str(n) for name, n in (slices or {}).items()}
        self.objects.append({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {
                "kubernetes.io/hostname": name, "nvidia.com/gpu.present": "true",
                "nvidia.com/gpu.product": model,
                "topology.kubernetes.io/zone": self.random.choice("ab"), **(labels or {}),
            }, "creationTimestamp": stamp(60 * 24 * 90)},
            "spec": ({"unschedulable": True} if closed else {})
            | ({"taints": [{"key": taint, "value": "yes", "effect": "NoSchedule"}]}
               if taint else {}),
            "status": {
                "allocatable": amounts, "capacity": {**amounts, "cpu": str(cores)},
                "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown",
                                "lastHeartbeatTime": stamp(self.random.uniform(0, 0.5))}],
            },
        })  # fmt: skip
        self.pod(node=name, gpus=0, cores=0.25, gigabytes=0.5, namespace="kube-system",
                 prefix="node-exporter", owner=("DaemonSet", "node-exporter"))  # fmt: skip
        return name

    # -- pods

    def pod(self, *, gpus: int = 1, node: str | None = None, waited: float = 90.0,
            ran: float = 60.0, cores: float | None = None, gigabytes: float | None = None,
            namespace: str = "research", prefix: str = "train",
            owner: tuple[str, str] | None = None, labels: dict[str, str] | None = None,
            annotations: dict[str, str] | None = None, slices: dict[str, int] | None = None,
            phase: str = "", model: str = "", gates: bool = False,
            evicted: float | None = None, tolerated: str = "",
            selector: dict[str, str] | None = None,
            affinity: dict[str, Any] | None = None) -> str:  # fmt: skip
        """`waited`: minutes since it was made; `ran`: minutes since it was started."""
        self.count += 1
        name = f"{prefix}-{self.count:04d}"
        cores = 12.0 * max(gpus, 0.2) if cores is None else cores
        gigabytes = 100.0 * max(gpus, 0.2) if gigabytes is None else gigabytes
        asked = {"cpu": f"{round(cores * 1000)}m", "memory": f"{round(gigabytes * 1024)}Mi"}
        extended = ({GPU: str(gpus)} if gpus else {}) | {
            f"nvidia.com/mig-{profile}": str(n) for profile, n in (slices or {}).items()
        }
        if node:
            self.free[node] -= gpus if not phase else 0
        spec: dict[str, Any] = {
            "schedulerName": "default-scheduler",
            "containers": [{"name": "main", "image": "registry.example/train:1",
                            "resources": {"requests": {**asked, **extended}, "limits": extended}}],
        }  # fmt: skip
        if node:
            spec["nodeName"] = node
        if model:
            spec["nodeSelector"] = {"nvidia.com/gpu.product": model}
        if selector:
            spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **selector}
        if tolerated:
            spec["tolerations"] = [{"key": tolerated, "operator": "Exists"}]
        if affinity:
            spec["affinity"] = affinity
        if gates:
            spec["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
        status: dict[str, Any] = {"phase": phase or ("Running" if node else "Pending")}
        if node:
            status["startTime"] = stamp(ran)
            status["conditions"] = [{"type": "PodScheduled", "status": "True",
                                     "lastTransitionTime": stamp(ran)}]  # fmt: skip
        else:
            status["conditions"] = [{"type": "PodScheduled", "status": "False",
                                     "reason": "Unschedulable", "message": "0/9 nodes available",
                                     "lastTransitionTime": stamp(waited)}]  # fmt: skip
        if evicted is not None:
            status["conditions"].append(
                {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                 "lastTransitionTime": stamp(evicted)}
            )  # fmt: skip
        about: dict[str, Any] = {
            "name": name, "namespace": namespace, "labels": labels or {},
            "annotations": annotations or {},
            "creationTimestamp": stamp(max(waited, ran) if node else waited),
        }  # fmt: skip
        if owner:
            about["ownerReferences"] = [{"kind": owner[0], "name": owner[1]}]
        self.objects.append(
            {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec, "status": status}
        )
        return name

    def gang(self, name: str, *, running: list[str], waiting: int, gpus: int,
             label: str = "training.kubeflow.org/job-name", waited: float = 40.0,
             **more: Any) -> None:  # fmt: skip
        labels = {label: name, **more.pop("labels", {})}
        for node in running:
            self.pod(gpus=gpus, node=node, waited=waited, ran=waited, prefix=name, labels=labels,
                     **more)  # fmt: skip
        for _ in range(waiting):
            self.pod(gpus=gpus, waited=waited, prefix=name, labels=labels, **more)

    def busy(self, nodes: list[str], sizes: tuple[int, ...] = (8,), *, keep: int = 0) -> None:
        """Fill nodes until `keep` GPUs of each are free; what runs is older than what waits."""
        for node in nodes:
            while self.free[node] > keep:
                size = self.random.choice([s for s in (*sizes, 1) if s <= self.free[node] - keep])
                self.pod(gpus=size, node=node, ran=self.random.uniform(300, 4000), waited=0.0)

    def finished(self, nodes: list[str], number: int = 6) -> None:
        for _ in range(number):
            self.pod(gpus=self.random.choice([1, 2, 8]), node=self.random.choice(nodes),
                     ran=self.random.uniform(200, 900), phase="Succeeded")  # fmt: skip

    def sampled(self, busy_percent: tuple[float, float]) -> None:
        """What DCGM saw of every pod that runs."""
        for one in self.objects:
            if one["kind"] == "Pod" and one["status"]["phase"] == "Running":
                about = one["metadata"]
                if not any(a == about["name"] for _, a, _ in self.samples):
                    for _ in range(6):
                        self.samples.append((about["namespace"], about["name"],
                                             self.random.uniform(*busy_percent)))  # fmt: skip


def spread(c: Cluster, nodes: int, left: tuple[int, int], waiting: tuple[int, ...]) -> None:
    names = c.nodes(nodes)
    for name in names:
        c.busy([name], (1, 2), keep=c.random.randint(*left))
    c.finished(names)
    for size in waiting:
        c.pod(gpus=size, waited=c.random.uniform(20, 200), prefix="large")


def spread_models(c: Cluster) -> None:
    names = c.nodes(8) + c.nodes(8, model="NVIDIA-A100-SXM4-80GB")
    for name in names[:8]:
        c.busy([name], (2,), keep=c.random.choice([2, 3]))
    c.busy(names[8:])
    c.pod(gpus=8, model="NVIDIA-H100-80GB-HBM3", prefix="large")


def deadlock(c: Cluster, jobs: int, label: str) -> None:
    names = c.nodes(4 * jobs, 4)
    c.random.shuffle(names)
    for job in range(jobs):
        share = len(names) // jobs
        c.gang(f"pretrain-{job}", running=names[job * share : (job + 1) * share],
               waiting=share // 2 + 1, gpus=4, label=label)  # fmt: skip
    c.finished(names)


def one_partial(c: Cluster) -> None:
    names = c.nodes(6)
    c.busy(names[3:])
    c.gang("tune", running=names[:3], waiting=1, gpus=8, label="ray.io/cluster")


def quota(c: Cluster, jobs: int, each: int) -> None:
    names = c.nodes(8)
    c.busy(names[: 8 - jobs * each], (4, 2))
    free = names[8 - jobs * each :]
    for job in range(jobs):
        mine = free[job * each : (job + 1) * each]
        for name in mine[1:]:
            c.busy([name], keep=6)
        c.gang(f"ft-{job}", running=mine[:1], waiting=len(mine) - 1, gpus=8,
               label="jobset.sigs.k8s.io/jobset-name",
               labels={"kueue.x-k8s.io/queue-name": "team-a"})  # fmt: skip


def template(c: Cluster, kind: str, requests: str | None, limits: str | None) -> None:
    c.busy(c.nodes(4), (8, 4))
    resources = {"requests": {"cpu": "8"}, "limits": {"cpu": "8"}}
    if requests:
        resources["requests"][GPU] = requests
    if limits:
        resources["limits"][GPU] = limits
    pod = {"template": {"spec": {"containers": [{"name": "w", "resources": resources}]}}}
    spec: dict[str, Any] = {"replicatedJobs": [{"name": "w", "replicas": 2, "template": {
        "spec": {"parallelism": 4, **pod}}}]}  # fmt: skip
    if kind == "RayCluster":
        spec = {"workerGroupSpecs": [{"groupName": "w", "replicas": 4, **pod}]}
    c.objects.append({"apiVersion": "v1", "kind": kind, "spec": spec,
                      "metadata": {"name": "wrong", "namespace": "research"}})  # fmt: skip


def cpu_pods(c: Cluster) -> None:
    names = c.nodes(6, cores=96)
    c.busy(names[:2])
    for name in names[2:]:
        for _ in range(4):
            c.pod(gpus=0, node=name, cores=c.random.uniform(16, 20), gigabytes=20, prefix="etl",
                  ran=800, owner=("ReplicaSet", "etl-7c9"))  # fmt: skip
    for _ in range(6):
        c.pod(gpus=4, cores=48, prefix="ft")


def greedy_gpu_pods(c: Cluster) -> None:
    for name in c.nodes(8, cores=128):
        c.pod(gpus=4, node=name, cores=c.random.uniform(100, 110), gigabytes=200, ran=600)
    for _ in range(5):
        c.pod(gpus=2, cores=32, prefix="ft")


def out_of_memory(c: Cluster) -> None:
    for name in c.nodes(5, gigabytes=1024):
        c.pod(gpus=2, node=name, cores=16, gigabytes=c.random.uniform(880, 940), ran=600)
    for _ in range(4):
        c.pod(gpus=4, cores=32, gigabytes=400, prefix="ft")


def starving(c: Cluster, large: int) -> None:
    names = c.nodes(5)
    for _ in range(large):
        c.pod(gpus=8, waited=c.random.uniform(500, 600), prefix="large")
    for name in names:
        while c.free[name] >= 2:
            c.pod(gpus=c.random.choice([1, 2]), node=name, ran=c.random.uniform(10, 300))
    c.finished(names)


def mig(c: Cluster, cut: dict[str, int], used: dict[str, int], waiting: str, number: int) -> None:
    for _ in range(4):
        name = c.node(0, slices=cut)
        for profile, count in used.items():
            for _ in range(count):
                c.pod(gpus=0, node=name, slices={profile: 1}, cores=4, gigabytes=16, ran=500)
    c.busy(c.nodes(3))
    for _ in range(number):
        c.pod(gpus=0, slices={waiting: 1}, cores=4, gigabytes=16, prefix="infer")


def idle(c: Cluster, number: int, gpus: int) -> None:
    names = c.nodes(4)
    for place in range(number):
        name = c.pod(gpus=gpus, node=names[place % 2], ran=700, prefix="notebook",
                     owner=("StatefulSet", "notebook"))  # fmt: skip
        c.samples += [("research", name, c.random.uniform(0, 2)) for _ in range(6)]
    c.busy(names, (4,))
    c.sampled((60, 98))


def thrash(c: Cluster) -> None:
    names = c.nodes(4)
    for job in range(2):
        for again in range(6):
            begin = 40.0 * (again + 1)
            c.pod(gpus=8, node=names[job], ran=begin, evicted=begin - c.random.uniform(15, 25),
                  phase="Failed", owner=("Job", f"low-{job}"), waited=begin)  # fmt: skip
    c.busy(names)


def closed(c: Cluster, **how: bool) -> None:
    c.busy(c.nodes(6))
    c.nodes(2, **how)
    for _ in range(2):
        c.pod(gpus=8, prefix="large")


def tainted(c: Cluster) -> None:
    """GPU pods without the toleration that the nodes' taint asks for."""
    names = c.nodes(6, taint="nvidia.com/gpu")
    for name in names[:3]:
        c.pod(gpus=8, node=name, ran=600, tolerated="nvidia.com/gpu")
    for _ in range(3):
        c.pod(gpus=8, prefix="forgot")


def mislabelled(c: Cluster) -> None:
    """Pods that insist on a label that no node has."""
    c.busy(c.nodes(4)[:2])
    for _ in range(4):
        c.pod(gpus=4, prefix="choosy", affinity=on_nodes("disk", "In", "nvme"))


def on_nodes(key: str, operator: str, *values: str) -> dict[str, Any]:
    one = {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [one]}]}}}  # fmt: skip


def queue_of(c: Cluster, gpus: int, *, cohort: str = "") -> None:
    c.objects.append(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ClusterQueue",
            "metadata": {"name": "research"},
            "spec": {
                **({"cohortName": cohort} if cohort else {}),
                "resourceGroups": [
                    {
                        "coveredResources": [GPU],
                        "flavors": [
                            {"name": "gpu", "resources": [{"name": GPU, "nominalQuota": gpus}]}
                        ],
                    }
                ],
            },
        }
    )
    c.objects.append({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
        "metadata": {"name": "team-a", "namespace": "research"},
        "spec": {"clusterQueue": "research"}})  # fmt: skip


def tight_quota(c: Cluster, waiting: int, each: int, *, cohort: str = "") -> None:
    names = c.nodes(6)
    queued = {"kueue.x-k8s.io/queue-name": "team-a"}
    for name in names[:2]:
        c.pod(gpus=8, node=name, ran=500, labels=queued)
    queue_of(c, 16, cohort=cohort)
    for _ in range(waiting):
        c.pod(gpus=each, gates=True, labels=queued, prefix="held")


PLANTED: dict[str, tuple[str, Callable[[Cluster], None]]] = {
    "spread thinly": ("spreading", lambda c: spread(c, 16, (1, 3), (8, 8, 8))),
    "spread mixed": ("spreading", lambda c: spread(c, 24, (0, 4), (8, 4, 8))),
    "spread on one of two models": ("spreading", spread_models),
    "two jobs in a deadlock": (
        "no-gang", lambda c: deadlock(c, 2, "training.kubeflow.org/job-name")),
    "three jobs in a deadlock": (
        "no-gang", lambda c: deadlock(c, 3, "jobset.sigs.k8s.io/jobset-name")),
    "one job in part": ("no-gang", one_partial),
    "admitted by quota": ("quota-without-topology", lambda c: quota(c, 1, 4)),
    "two admitted by quota": ("quota-without-topology", lambda c: quota(c, 2, 3)),
    "half a GPU": ("requests-unequal-limits", lambda c: template(c, "JobSet", None, "0.5")),
    "four requested of eight": (
        "requests-unequal-limits", lambda c: template(c, "RayCluster", "4", "8")),
    "CPU pods on GPU nodes": ("starved-of-cpu", cpu_pods),
    "GPU pods that take all cores": ("starved-of-cpu", greedy_gpu_pods),
    "no memory beside free GPUs": ("starved-of-cpu", out_of_memory),
    "one large job overtaken": ("large-jobs-starve", lambda c: starving(c, 1)),
    "three large jobs overtaken": ("large-jobs-starve", lambda c: starving(c, 3)),
    "slices too small": (
        "mig-mismatch", lambda c: mig(c, {"1g.10gb": 14}, {"1g.10gb": 3}, "3g.40gb", 4)),
    "slices too large": (
        "mig-mismatch", lambda c: mig(c, {"7g.80gb": 2}, {}, "1g.10gb", 9)),
    "idle notebooks": ("idle-gpus", lambda c: idle(c, 6, 2)),
    "evicted again and again": ("preemption-thrash", thrash),
    "a taint that nobody tolerates": ("no-node-admits", tainted),
    "a label that no node has": ("no-node-admits", mislabelled),
    "a quota below the cluster": ("quota-holds-back", lambda c: tight_quota(c, 3, 8)),
    "a quota that small pods wait for": ("quota-holds-back", lambda c: tight_quota(c, 9, 1)),
    "cordoned and forgotten": ("closed-nodes", lambda c: closed(c, closed=True)),
}  # fmt: skip


def full(c: Cluster) -> None:
    c.busy(c.nodes(10), (8, 4, 2))
    for size in (8, 8, 4, 1):
        c.pod(gpus=size, waited=c.random.uniform(10, 25), prefix="next")


def quiet(c: Cluster) -> None:
    names = c.nodes(10)
    c.busy(names[:4], (8, 4))
    c.finished(names)


def whole_gang_waits(c: Cluster) -> None:
    names = c.nodes(6)
    c.busy(names[:5])
    c.busy(names[5:], (2,), keep=4)
    c.gang("next", running=[], waiting=4, gpus=8,
           labels={"scheduling.x-k8s.io/pod-group": "next"})  # fmt: skip


def gated(c: Cluster) -> None:
    names = c.nodes(6)
    c.busy(names, (4,), keep=1)
    c.gang("admitted", running=[], waiting=6, gpus=8, gates=True,
           labels={"kueue.x-k8s.io/queue-name": "team-a"})  # fmt: skip


def services(c: Cluster) -> None:
    for name in c.nodes(8):
        c.pod(gpus=1, node=name, ran=9000, prefix="llm", owner=("ReplicaSet", "llm-5f6"))
        c.pod(gpus=2, node=name, ran=9000, prefix="asr", owner=("ReplicaSet", "asr-9d8"))
    c.pod(gpus=1, waited=1.0, prefix="llm", owner=("ReplicaSet", "llm-5f6"))


def just_starting(c: Cluster) -> None:
    names = c.nodes(8)
    c.busy(names[:4])
    c.gang("fresh", running=names[4:6], waiting=2, gpus=8, waited=1.5)


def slices_used_up(c: Cluster) -> None:
    mig(c, {"1g.10gb": 7, "3g.40gb": 2}, {"1g.10gb": 7, "3g.40gb": 2}, "1g.10gb", 3)


def working(c: Cluster) -> None:
    names = c.nodes(5)
    loading = c.pod(gpus=8, node=names[0], ran=6, prefix="loads")
    c.samples += [("research", loading, 0.0)] * 6
    c.pod(gpus=4, node=names[1], ran=50, evicted=30, phase="Failed", owner=("Job", "low"))
    c.busy(names[1:], (8, 4))
    c.sampled((35, 99))


def dedicated(c: Cluster) -> None:
    """Nodes that are free and kept for others, while pods wait for the full ones."""
    c.busy(c.nodes(5), (8, 4))
    for name in c.nodes(3, taint="dedicated"):
        c.pod(gpus=4, node=name, ran=500, tolerated="dedicated")
    for _ in range(3):
        c.pod(gpus=2, prefix="next")


def one_per_node(c: Cluster) -> None:
    """Replicas that stay apart on purpose: there is one on every node."""
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": "llm"}},
         "topologyKey": "kubernetes.io/hostname"}]}}  # fmt: skip
    for name in c.nodes(4):
        c.pod(gpus=2, node=name, ran=900, prefix="llm", labels={"app": "llm"}, affinity=apart)
    c.pod(gpus=2, prefix="llm", labels={"app": "llm"}, affinity=apart)


def one_rack(c: Cluster) -> None:
    """Pods that want to be in the rack of their store, and that rack is full."""
    near = {
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {
                        "matchExpressions": [{"key": "app", "operator": "In", "values": ["store"]}]
                    },
                    "topologyKey": "rack",
                }
            ]
        }
    }
    full_rack = c.nodes(2, labels={"rack": "r1"})
    c.pod(gpus=0, node=full_rack[0], ran=900, labels={"app": "store"}, prefix="store")
    c.busy(full_rack)
    c.nodes(2, labels={"rack": "r2"})
    c.pod(gpus=4, prefix="near", affinity=near)  # fmt: skip


HEALTHY: dict[str, Callable[[Cluster], None]] = {
    "full, and some wait": full, "half empty": quiet, "a gang waits as a whole": whole_gang_waits,
    "held back by its queue": gated, "services spread on purpose": services,
    "a job that is just starting": just_starting, "slices all used": slices_used_up,
    "everybody works": working, "nodes kept for others": dedicated,
    "replicas kept apart": one_per_node, "a full rack": one_rack,
    "a quota that may borrow": lambda c: tight_quota(c, 3, 8, cohort="all"),
}  # fmt: skip
