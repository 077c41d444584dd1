"""Clusters of kinds that the rules were not written against: fourteen with a fault, four without.

They were written before the doctor was run on any of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.queue.planted_clusters import GPU, Cluster, closed, idle, mig, on_nodes, spread


def of_amd(c: Cluster) -> None:
    """GPUs of another vendor, spread thinly."""
    spread(c, 12, (2, 3), (8, 8))
    c.objects = json.loads(json.dumps(c.objects).replace(GPU, "amd.com/gpu"))


def small_nodes_spread(c: Cluster) -> None:
    """Nodes of four GPUs, of which each has one or two left."""
    for name in c.nodes(20, 4, model="NVIDIA-L40S"):
        c.busy([name], (1,), keep=c.random.choice([1, 2]))
    for _ in range(4):
        c.pod(gpus=4, waited=c.random.uniform(30, 90), prefix="four")


def leaders_and_workers(c: Cluster) -> None:
    """Two serving groups of LeaderWorkerSet, each with half of its pods."""
    names = c.nodes(6)
    for group in range(2):
        c.gang(f"llm-{group}", running=names[3 * group : 3 * group + 3], waiting=2, gpus=8,
               label="leaderworkerset.sigs.k8s.io/name")  # fmt: skip


def ray_in_part(c: Cluster) -> None:
    """A Ray cluster of nine workers, of which five run, and another of which three do."""
    names = c.nodes(8)
    c.gang("tune", running=names[:5], waiting=4, gpus=8, label="ray.io/cluster")
    c.gang("sweep", running=names[5:], waiting=4, gpus=8, label="ray.io/cluster")


def no_limits(c: Cluster) -> None:
    """A PyTorchJob that requests GPUs and sets no limit."""
    c.busy(c.nodes(3), (8, 4))
    asked = {"requests": {"cpu": "16", GPU: "8"}, "limits": {"cpu": "16"}}
    pods = {"spec": {"containers": [{"name": "train", "resources": asked}]}}
    spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": pods}}}
    c.objects.append({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": spec,
                      "metadata": {"name": "wrong", "namespace": "vision"}})  # fmt: skip


def caches_eat_memory(c: Cluster) -> None:
    """Pods without GPUs that take all memory of GPU nodes, and few cores."""
    names = c.nodes(6, gigabytes=1024)
    for name in names:
        c.pod(gpus=2, node=name, ran=900)
        c.pod(gpus=0, node=name, cores=4, gigabytes=c.random.uniform(740, 770), prefix="cache",
              ran=2000, owner=("StatefulSet", "cache"))  # fmt: skip
    for _ in range(5):
        c.pod(gpus=4, cores=32, gigabytes=400, prefix="ft")


def wrong_model(c: Cluster) -> None:
    """Pods that ask for a product whose name is not quite that of the nodes."""
    c.busy(c.nodes(5)[:3])
    for _ in range(2):
        c.pod(gpus=8, model="NVIDIA-H100-80GB", prefix="typo")


def wrong_pool(c: Cluster) -> None:
    """Nodes of two pools, and pods that exclude both."""
    c.nodes(2, labels={"pool": "blue"})
    c.busy(c.nodes(3, labels={"pool": "green"}))
    for _ in range(5):
        c.pod(gpus=2, prefix="neither", affinity=on_nodes("pool", "NotIn", "blue", "green"))


def two_flavors(c: Cluster) -> None:
    """A quota by kinds of GPU, of which the one that is asked for is used up."""
    h100 = c.nodes(4, labels={"kind": "h100"})
    c.nodes(2, labels={"kind": "a100"}, model="NVIDIA-A100-SXM4-80GB")
    queued = {"kueue.x-k8s.io/queue-name": "team-a"}
    c.pod(gpus=8, node=h100[0], ran=700, labels=queued)
    flavors = [{"name": kind, "resources": [{"name": GPU, "nominalQuota": gpus}]}
               for kind, gpus in (("h100", 8), ("a100", 0))]  # fmt: skip
    c.objects += [
        {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue",
         "metadata": {"name": "research"},
         "spec": {"resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}]}},
        {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue",
         "metadata": {"name": "team-a", "namespace": "research"},
         "spec": {"clusterQueue": "research"}},
    ]  # fmt: skip
    for _ in range(4):
        c.pod(gpus=4, gates=True, labels=queued, prefix="held")


def idle_ranks(c: Cluster) -> None:
    """A job of four nodes that has hung in a collective for hours."""
    names = c.nodes(6)
    c.busy(names[4:])
    for name in names[:4]:
        pod = c.pod(gpus=8, node=name, ran=900, prefix="hung",
                    labels={"training.kubeflow.org/job-name": "hung"})  # fmt: skip
        c.samples += [("research", pod, 0.0) for _ in range(6)]
    c.sampled((70, 99))


def many_evicted(c: Cluster) -> None:
    """Four low jobs, each started and taken off again five times in as many hours."""
    names = c.nodes(5)
    for job in range(4):
        for again in range(5):
            begin = 60.0 * (again + 1) + 5 * job
            c.pod(gpus=4, node=names[job], ran=begin, evicted=begin - c.random.uniform(30, 45),
                  phase="Failed", owner=("Job", f"spare-{job}"), waited=begin)  # fmt: skip
    c.busy(names)


def starving_small(c: Cluster) -> None:
    """A whole node of four GPUs is waited for, while ones go first again and again."""
    names = c.nodes(8, 4, model="NVIDIA-L40S")
    for _ in range(2):
        c.pod(gpus=4, waited=c.random.uniform(600, 700), prefix="four")
    for name in names:
        while c.free[name] >= 1:
            c.pod(gpus=1, node=name, ran=c.random.uniform(20, 400))
    c.finished(names)


UNSEEN: dict[str, tuple[str, Callable[[Cluster], None]]] = {
    "GPUs of AMD, spread": ("spreading", of_amd),
    "nodes of four, spread": ("spreading", small_nodes_spread),
    "groups of leaders and workers": ("no-gang", leaders_and_workers),
    "two Ray clusters in part": ("no-gang", ray_in_part),
    "requests without limits": ("requests-unequal-limits", no_limits),
    "caches that take the memory": ("starved-of-cpu", caches_eat_memory),
    "a product misspelt": ("no-node-admits", wrong_model),
    "pools that are both excluded": ("no-node-admits", wrong_pool),
    "a quota by kinds of GPU": ("quota-holds-back", two_flavors),
    "a job that hangs": ("idle-gpus", idle_ranks),
    "four jobs evicted": ("preemption-thrash", many_evicted),
    "a node of four is waited for": ("large-jobs-starve", starving_small),
    "slices of two where one is asked": (
        "mig-mismatch", lambda c: mig(c, {"2g.20gb": 6}, {"2g.20gb": 1}, "1g.10gb", 8)),
    "nodes that are not ready": ("closed-nodes", lambda c: closed(c, ready=False)),
}  # fmt: skip


def drained_and_not_missed(c: Cluster) -> None:
    """A node in maintenance, while nobody waits."""
    c.busy(c.nodes(5), (4, 2), keep=1)
    c.node(closed=True)


def notebooks_at_work(c: Cluster) -> None:
    """Notebooks that compute now and then, and hold what they use."""
    idle(c, 0, 1)
    c.samples = [(where, pod, 40.0) for where, pod, _ in c.samples]


def queue_of_an_hour(c: Cluster) -> None:
    """Everything is full of whole-node jobs, and the next ones wait their turn."""
    c.busy(c.nodes(6))
    for number in range(5):
        c.pod(gpus=8, waited=10.0 * (number + 1), prefix="next")


def two_kinds_full(c: Cluster) -> None:
    """The kind that is asked for is full, and the other one is free and not asked for."""
    c.busy(c.nodes(4))
    c.nodes(2, model="NVIDIA-L40S", gpus=4)
    for _ in range(3):
        c.pod(gpus=2, model="NVIDIA-H100-80GB-HBM3", prefix="next", waited=40.0)


UNSEEN_HEALTHY: dict[str, Callable[[Cluster], None]] = {
    "a node in maintenance": drained_and_not_missed, "notebooks at work": notebooks_at_work,
    "a queue of an hour": queue_of_an_hour, "the other kind is free": two_kinds_full,
}  # fmt: skip
