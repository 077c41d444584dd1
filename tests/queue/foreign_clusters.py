"""Clusters of a fourth kind: twenty with a fault, ten without, written before the doctor saw any.

They have what the others lack: other accelerators, sidecars, volumes, daemons, older labels.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.queue.planted_clusters import GPU, Cluster, stamp


def pod_of(c: Cluster) -> dict[str, Any]:
    """The object that was added last."""
    return c.objects[-1]


def asks(c: Cluster, **more: str) -> None:
    """Let the pod that was added last ask for something else as well."""
    pod_of(c)["spec"]["containers"][0]["resources"]["requests"].update(more)


def offers(c: Cluster, names: list[str], **more: str) -> None:
    for one in c.objects:
        if one["kind"] == "Node" and one["metadata"]["name"] in names:
            one["status"]["allocatable"].update(more)
            one["status"]["capacity"].update(more)


def kept_apart(c: Cluster) -> None:
    """Replicas of a service that insist on nodes of their own, on each second of twelve nodes."""
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": "asr"}},
         "topologyKey": "kubernetes.io/hostname"}]}}  # fmt: skip
    for place, name in enumerate(c.nodes(12)):
        if place % 2:
            c.pod(gpus=1, node=name, ran=9000, prefix="asr", labels={"app": "asr"}, affinity=apart)
        c.busy([name], (2,), keep=c.random.choice([3, 4]))
    for _ in range(3):
        c.pod(gpus=8, prefix="large")


def volumes_elsewhere(c: Cluster) -> None:
    """Volumes of a zone whose nodes are full: kube-scheduler says so in the pod's condition."""
    c.busy(c.nodes(4, labels={"topology.kubernetes.io/zone": "a"}))
    c.nodes(3, labels={"topology.kubernetes.io/zone": "b"})
    for _ in range(3):
        c.pod(gpus=8, prefix="resume")
        one = pod_of(c)
        one["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        one["status"]["conditions"][0]["message"] = (
            "0/7 nodes are available: 3 node(s) had volume node affinity conflict, "
            "4 Insufficient nvidia.com/gpu. preemption: 0/7 nodes are available: "
            "3 Preemption is not helpful for scheduling, 4 No preemption victims found."
        )


def too_many_pods(c: Cluster) -> None:
    """Nodes that may run twelve pods each, and do."""
    names = c.nodes(5)
    offers(c, names, pods="12")
    for name in names:
        for _ in range(9):
            c.pod(gpus=0, node=name, cores=0.5, gigabytes=1, prefix="agent", ran=5000)
        c.pod(gpus=2, node=name, ran=800)
        c.pod(gpus=2, node=name, ran=700)
    for _ in range(6):
        c.pod(gpus=2, prefix="tune")


def in_maintenance(c: Cluster) -> None:
    """A taint of somebody's maintenance on nodes that nobody has taken back since."""
    c.busy(c.nodes(5))
    c.nodes(3, taint="maintenance")
    for _ in range(3):
        c.pod(gpus=8, prefix="large")


def of_gaudi(c: Cluster) -> None:
    """Gaudi cards, spread thinly."""
    for name in c.nodes(10):
        c.busy([name], (1, 2), keep=c.random.choice([2, 3]))
    for _ in range(2):
        c.pod(gpus=8, waited=100, prefix="large")
    c.objects = json.loads(json.dumps(c.objects).replace(GPU, "habana.ai/gaudi"))


def old_mpi(c: Cluster) -> None:
    """Two MPIJobs of an old operator, each with half of its workers."""
    names = c.nodes(6)
    for job in range(2):
        labels = {"group-name": "kubeflow.org", "mpi-job-role": "worker"}
        c.gang(f"horovod-{job}", running=names[3 * job : 3 * job + 3], waiting=2, gpus=8,
               label="mpi-job-name", labels=labels)  # fmt: skip


def grove(c: Cluster) -> None:
    """Two inference sets of NVIDIA Grove, each with a part of its pods."""
    names = c.nodes(6)
    for job in range(2):
        c.gang(f"disagg-{job}", running=names[3 * job : 3 * job + 3], waiting=2, gpus=8,
               label="grove.io/podgang")  # fmt: skip


def cluster_queue(name: str, gpus: int, **more: Any) -> dict[str, Any]:
    amount = {"name": GPU, "nominalQuota": gpus, **more}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {"cohortName": "all", "namespaceSelector": {}, "resourceGroups": [
                {"coveredResources": [GPU],
                 "flavors": [{"name": "gpu", "resources": [amount]}]}]}}  # fmt: skip


def lends_nothing(c: Cluster) -> None:
    """A cohort whose other queue is empty and lends nothing."""
    names = c.nodes(6)
    label = {"kueue.x-k8s.io/queue-name": "team-a"}
    for name in names[:2]:
        c.pod(gpus=8, node=name, ran=500, labels=label)
    c.objects.append(cluster_queue("research", 16))
    c.objects.append(cluster_queue("products", 32, lendingLimit=0))
    c.objects.append({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
                      "metadata": {"name": "team-a", "namespace": "research"},
                      "spec": {"clusterQueue": "research"}})  # fmt: skip
    for _ in range(3):
        c.pod(gpus=8, gates=True, labels=label, prefix="held")


def preempted_ranks(c: Cluster) -> None:
    """A JobSet of two nodes that is preempted as a whole again and again, every half hour."""
    names = c.nodes(4)
    for again in range(5):
        begin = 45.0 * (again + 1)
        for rank in range(2):
            c.pod(gpus=8, node=names[rank], ran=begin, waited=begin, evicted=begin - 20,
                  phase="Failed", prefix=f"low-{rank}",
                  labels={"jobset.sigs.k8s.io/jobset-name": "low"})  # fmt: skip
    c.busy(names)


def hung_for_hours(c: Cluster) -> None:
    """Eight whole nodes of a job that waits in a collective: GPU utilisation without work."""
    names = c.nodes(6)
    for name in names[:3]:
        one = c.pod(gpus=8, node=name, ran=900, prefix="rank")
        c.samples += [("research", one, c.random.uniform(0, 1)) for _ in range(6)]
    c.busy(names[3:], (4, 8))
    c.sampled((70, 99))


def hugepages(c: Cluster) -> None:
    """Huge pages that pods without GPUs have taken all of."""
    names = c.nodes(4)
    offers(c, names, **{"hugepages-2Mi": "64Gi"})
    for name in names:
        c.pod(gpus=4, node=name, ran=800)
        c.pod(gpus=0, node=name, cores=4, gigabytes=8, prefix="dpdk", ran=4000)
        asks(c, **{"hugepages-2Mi": "60Gi"})
    for _ in range(4):
        c.pod(gpus=4, prefix="rdma")
        asks(c, **{"hugepages-2Mi": "16Gi"})


def daemons(c: Cluster) -> None:
    """Daemons that take thirty cores of each node, and jobs that ask for all cores of a node."""
    names = c.nodes(6, cores=96)
    for name in names:
        c.pod(gpus=0, node=name, cores=30, gigabytes=20, prefix="collector", ran=6000,
              owner=("DaemonSet", "collector"))  # fmt: skip
    c.busy(names[:2])
    for _ in range(4):
        c.pod(gpus=8, cores=90, gigabytes=800, prefix="ranks")


def more_than_a_node(c: Cluster) -> None:
    """Jobs that ask for more cores than any node has."""
    c.busy(c.nodes(3, cores=96)[:1])
    for _ in range(2):
        c.pod(gpus=8, cores=128, gigabytes=800, prefix="greedy")


def lost_nodes(c: Cluster) -> None:
    """Nodes that the control plane has not heard of for hours, with pods that nobody can delete."""
    c.busy(c.nodes(5))
    for name in c.nodes(2, ready=False):
        c.pod(gpus=8, node=name, ran=3000)
        pod_of(c)["metadata"]["deletionTimestamp"] = stamp(240)
    for _ in range(2):
        c.pod(gpus=8, prefix="large")


def state_of(c: Cluster, *states: dict[str, Any], init: bool = False) -> None:
    key = "initContainerStatuses" if init else "containerStatuses"
    pod_of(c)["status"][key] = [
        {"name": f"c{place}", "ready": False, "restartCount": 0, "state": state}
        for place, state in enumerate(states)
    ]


def one_rank_lacks_its_image(c: Cluster) -> None:
    """A job of four nodes of which one has waited for its image for two hours."""
    names = c.nodes(6)
    labels = {"jobset.sigs.k8s.io/jobset-name": "pretrain"}
    for rank in range(4):
        c.pod(gpus=8, node=names[rank], ran=130, prefix="pretrain", labels=labels)
        state_of(c, {"running": {"startedAt": stamp(125)}})
    pod_of(c)["status"]["phase"] = "Pending"
    state_of(c, {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}})
    c.busy(names[4:])
    c.pod(gpus=8, waited=60, prefix="next")


def init_for_ever(c: Cluster) -> None:
    """Init containers that have waited for a service for six hours, each with a node's GPUs."""
    names = c.nodes(5)
    for name in names[:2]:
        c.pod(gpus=8, node=name, ran=360, prefix="wait-for-db")
        pod_of(c)["status"]["phase"] = "Pending"
        state_of(c, {"running": {"startedAt": stamp(359)}}, init=True)
        state_of(c, {"waiting": {"reason": "PodInitializing"}})
    c.busy(names[2:])
    c.pod(gpus=8, waited=60, prefix="next")


def sidecars_go_on(c: Cluster) -> None:
    """Trainings that ended hours ago, whose sidecars run on and keep the GPUs."""
    names = c.nodes(5)
    for name in names[:2]:
        c.pod(gpus=8, node=name, ran=900, prefix="train-istio")
        state_of(c, {"terminated": {"exitCode": 0, "reason": "Completed",
                                    "startedAt": stamp(890), "finishedAt": stamp(400)}},
                 {"running": {"startedAt": stamp(890)}})  # fmt: skip
        pod_of(c)["status"]["containerStatuses"][0]["name"] = "main"
        pod_of(c)["status"]["containerStatuses"][1]["name"] = "istio-proxy"
        pod_of(c)["spec"]["containers"].append({"name": "istio-proxy", "image": "proxy:1"})
    c.busy(names[2:])
    for _ in range(2):
        c.pod(gpus=8, waited=200, prefix="next")


def nobody_schedules(c: Cluster) -> None:
    """Pods of a scheduler that is not there: no condition, no event, and free nodes."""
    c.busy(c.nodes(4)[:2])
    for _ in range(2):
        c.pod(gpus=8, waited=300, prefix="lost")
        one = pod_of(c)
        one["spec"]["schedulerName"] = "volcano"
        one["status"] = {"phase": "Pending"}


def gang_overtaken(c: Cluster) -> None:
    """A gang of three nodes that has waited since yesterday, while single nodes come and go."""
    names = c.nodes(6)
    c.gang("pretrain", running=[], waiting=3, gpus=8, waited=1400,
           labels={"scheduling.x-k8s.io/pod-group": "pretrain"})  # fmt: skip
    for name in names:
        c.pod(gpus=8, node=name, waited=c.random.uniform(10, 30), ran=c.random.uniform(20, 400))
        pod_of(c)["metadata"]["creationTimestamp"] = stamp(c.random.uniform(410, 500))


def volcano_capability(c: Cluster) -> None:
    """A queue of Volcano whose capability is used up, in a cluster with free nodes."""
    names = c.nodes(6)
    mark = {"scheduling.volcano.sh/queue-name": "research"}
    c.objects.append({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
                      "metadata": {"name": "research"},
                      "spec": {"capability": {GPU: 16, "cpu": 400}}})  # fmt: skip
    for name in names[:2]:
        c.pod(gpus=8, node=name, ran=500, labels=mark, annotations=mark)
    for _ in range(3):
        c.pod(gpus=8, waited=200, labels=mark, annotations=mark, prefix="held")
        pod_of(c)["spec"]["schedulerName"] = "volcano"
        pod_of(c)["status"]["conditions"][0]["message"] = "queue resource quota insufficient"


FOREIGN: dict[str, tuple[tuple[str, ...], Callable[[Cluster], None]]] = {
    "replicas kept apart, and others in pieces": (("spreading",), kept_apart),
    "volumes of a full zone": (("no-node-admits",), volumes_elsewhere),
    "nodes with all pods they may have": (("starved-of-cpu",), too_many_pods),
    "a maintenance that nobody ended": (("no-node-admits", "closed-nodes"), in_maintenance),
    "Gaudi cards spread": (("spreading",), of_gaudi),
    "MPIJobs of an old operator": (("no-gang",), old_mpi),
    "sets of Grove in part": (("no-gang",), grove),
    "a queue that lends nothing": (("quota-holds-back",), lends_nothing),
    "a JobSet preempted again and again": (("preemption-thrash",), preempted_ranks),
    "a job that hangs": (("idle-gpus",), hung_for_hours),
    "huge pages all taken": (("starved-of-cpu",), hugepages),
    "daemons that take cores": (("starved-of-cpu",), daemons),
    "more cores than a node has": (("starved-of-cpu", "no-node-admits"), more_than_a_node),
    "nodes that are lost": (("closed-nodes",), lost_nodes),
    "one rank without its image": (("held-without-running",), one_rank_lacks_its_image),
    "init containers for ever": (("held-without-running",), init_for_ever),
    "sidecars that go on": (("held-without-running",), sidecars_go_on),
    "a scheduler that is not there": (("no-node-admits", "unscheduled"), nobody_schedules),
    "a gang that single nodes overtake": (("large-jobs-starve",), gang_overtaken),
    "a queue of Volcano used up": (("quota-holds-back",), volcano_capability),
}


def node_comes_up(c: Cluster) -> None:
    """Nodes that an autoscaler has just made, not ready for two minutes."""
    c.busy(c.nodes(4))
    names = c.nodes(2, ready=False)
    for one in c.objects:
        if one["kind"] == "Node" and one["metadata"]["name"] in names:
            one["metadata"]["creationTimestamp"] = stamp(2)
            one["status"]["conditions"][0]["status"] = "False"
    for _ in range(2):
        c.pod(gpus=8, waited=6, prefix="next")


def gated_by_hand(c: Cluster) -> None:
    """Pods with somebody's own scheduling gate, and free nodes."""
    c.busy(c.nodes(6)[:3])
    for _ in range(3):
        c.pod(gpus=8, gates=True, waited=300, prefix="later")
        pod_of(c)["spec"]["schedulingGates"] = [{"name": "example.com/data-ready"}]


def nothing_to_pack(c: Cluster) -> None:
    """Three GPUs are free in all, on three nodes, and a whole node is waited for."""
    names = c.nodes(6)
    c.busy(names[:3], (4, 2), keep=1)
    c.busy(names[3:])
    c.pod(gpus=8, waited=25, prefix="large")


def service_scales(c: Cluster) -> None:
    """A Deployment whose third replica waits, in a full cluster."""
    names = c.nodes(3)
    for name in names[:2]:
        c.pod(gpus=8, node=name, ran=2000, prefix="llm", owner=("ReplicaSet", "llm-77"))
    c.busy(names[2:])
    c.pod(gpus=8, waited=60, prefix="llm", owner=("ReplicaSet", "llm-77"))


def warming_up(c: Cluster) -> None:
    """Pods that load their data for ten minutes, GPUs idle."""
    names = c.nodes(4)
    for name in names[:2]:
        one = c.pod(gpus=8, node=name, ran=11, waited=14, prefix="load")
        c.samples += [("research", one, 0.0)] * 6
    c.busy(names[2:], (8,))
    c.sampled((60, 99))


def cores_wanted_elsewhere(c: Cluster) -> None:
    """Pods without GPUs wait for nodes without GPUs."""
    c.busy(c.nodes(4)[:3])
    for _ in range(2):
        c.node(0)
        c.pod(gpus=0, node=f"gpu-{len(c.free) - 1:03d}", cores=180, gigabytes=900, ran=900)
    for _ in range(3):
        c.pod(gpus=0, cores=64, gigabytes=200, waited=100, prefix="etl",
              selector={"pool": "cores"})  # fmt: skip


def slices_to_spare(c: Cluster) -> None:
    for _ in range(3):
        name = c.node(0, slices={"1g.10gb": 7, "3g.40gb": 4})
        c.pod(gpus=0, node=name, slices={"3g.40gb": 1}, cores=4, gigabytes=16, ran=500)


def all_done(c: Cluster) -> None:
    """A night's jobs have ended, some of them in failure, and nobody waits."""
    names = c.nodes(6)
    c.finished(names, 12)
    for name in names[:3]:
        c.pod(gpus=8, node=name, ran=400, phase="Failed")


def sidecar_starts_first(c: Cluster) -> None:
    """Pods whose sidecars run as they should, beside a training that runs."""
    for name in c.nodes(3):
        c.pod(gpus=8, node=name, ran=300, prefix="train-istio")
        state_of(c, {"running": {"startedAt": stamp(299)}}, {"running": {"startedAt": stamp(298)}})
        pod_of(c)["status"]["containerStatuses"][0]["name"] = "main"
        pod_of(c)["spec"]["containers"].append({"name": "c1", "image": "proxy:1"})
    c.pod(gpus=8, waited=20, prefix="next")


def volumes_being_made(c: Cluster) -> None:
    """Pods whose volumes are made since two minutes."""
    c.busy(c.nodes(3)[:2])
    c.pod(gpus=8, waited=2, prefix="new")
    pod_of(c)["status"]["conditions"][0]["message"] = (
        "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    )


FOREIGN_HEALTHY: dict[str, Callable[[Cluster], None]] = {
    "nodes that come up": node_comes_up, "gated by hand": gated_by_hand,
    "too little to pack": nothing_to_pack, "a service that scales": service_scales,
    "jobs that load": warming_up, "cores are wanted elsewhere": cores_wanted_elsewhere,
    "slices to spare": slices_to_spare, "a night's jobs are done": all_done,
    "sidecars beside work": sidecar_starts_first, "volumes being made": volumes_being_made,
}  # fmt: skip
