"""Clusters with faults that no rule was written for when they were drawn, and healthy ones.

Of forty (node pools of Run:ai came later) twelve were told rightly at first sight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.queue.foreign_clusters import pod_of
from tests.queue.planted_clusters import GPU, Cluster, stamp
from tests.queue.withheld_clusters import add

KUEUE, VOLCANO = "kueue.x-k8s.io/v1beta2", "scheduling.volcano.sh/v1beta1"
ZONE = "topology.kubernetes.io/zone"
LIMIT_RANGER = "kubernetes.io/limit-ranger"
USED = "notebooks.kubeflow.org/last-activity"
NEVER_KUEUE = {"preemption": {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"}}


def said(c: Cluster, text: str) -> None:
    """What the scheduler says of the pod that was added last."""
    pod_of(c)["status"]["conditions"][0]["message"] = text


def by(c: Cluster, scheduler: str) -> None:
    pod_of(c)["spec"]["schedulerName"] = scheduler


def nodes_of(c: Cluster, names: list[str]) -> list[dict[str, Any]]:
    return [o for o in c.objects if o["kind"] == "Node" and o["metadata"]["name"] in names]


def asking(gpus: int) -> dict[str, Any]:
    amounts = {GPU: str(gpus)}
    resources = {"requests": {"cpu": "8", **amounts}, "limits": amounts}
    return {"spec": {"containers": [{"name": "w", "resources": resources}]}}


# -- queues and quotas


def run_ai(c: Cluster, project: dict[str, Any], version: str = "v2") -> None:
    for name in c.nodes(6)[:3]:
        c.pod(gpus=8, node=name, ran=700, namespace="runai-nlp", labels={"project": "nlp"})
        by(c, "runai-scheduler")
    add(c, f"run.ai/{version}", "Project", "nlp", project)
    for _ in range(2):
        c.pod(gpus=8, namespace="runai-nlp", labels={"project": "nlp"})
        by(c, "runai-scheduler")
        said(c, "waiting")


def cluster_queue(c: Cluster, name: str, gpus: int, cohort: str, **spec: Any) -> None:
    flavor = {"name": "all", "resources": [{"name": GPU, "nominalQuota": str(gpus)}]}
    groups = [{"coveredResources": [GPU], "flavors": [flavor]}]
    add(c, KUEUE, "ClusterQueue", name, {"cohortName": cohort, "resourceGroups": groups, **spec})
    add(c, KUEUE, "LocalQueue", f"{name}-jobs", {"clusterQueue": name}, namespace="research")


def workload(c: Cluster, name: str, queue: str, node: str = "", priority: int = 0) -> None:
    words = {"kueue.x-k8s.io/queue-name": f"{queue}-jobs"}
    spec = {"suspend": not node, "parallelism": 1, "completions": 1, "template": asking(8)}
    add(c, "batch/v1", "Job", name, spec, namespace="research", labels=words)
    told = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "couldn't"
            " assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in"
            " flavor all, 8 more needed"}  # fmt: skip
    add(c, KUEUE, "Workload", f"job-{name}",
        {"queueName": f"{queue}-jobs", "priority": priority,
         "podSets": [{"name": "main", "count": 1, "template": asking(8)}]},
        namespace="research", ownerReferences=[{"kind": "Job", "name": name}],
        status={"admission": {"clusterQueue": queue}} if node else {"conditions": [told]},
        )  # fmt: skip
    if node:
        c.pod(gpus=8, node=node, ran=600, owner=("Job", name), labels=words)


def kueue_never_preempts(c: Cluster, priority: int = 0) -> None:
    names = c.nodes(4)
    cluster_queue(c, "ml", 32, "", **NEVER_KUEUE)
    for number, name in enumerate(names):
        workload(c, f"low-{number}", "ml", name, priority)
    for number in range(2):
        workload(c, f"high-{number}", "ml", priority=10_000)


def lent(c: Cluster, waiting: int = 2) -> None:
    names = c.nodes(4)
    cluster_queue(c, "owner", 16, "all", **NEVER_KUEUE)
    cluster_queue(c, "borrower", 16, "all")
    for number, name in enumerate(names):
        workload(c, f"borrowed-{number}", "borrower", name)
    for number in range(waiting):
        workload(c, f"own-{number}", "owner")


def lent_lately(c: Cluster) -> None:
    lent(c, 1)
    for one in c.objects[-2:]:
        one["metadata"]["creationTimestamp"] = stamp(20)


def weight_of_none(c: Cluster) -> None:
    names = c.nodes(6)
    cluster_queue(c, "a", 0, "all", fairSharing={"weight": "0"})
    cluster_queue(c, "b", 0, "all", fairSharing={"weight": "1"})
    cluster_queue(c, "pool", 48, "all")
    for number, name in enumerate(names):
        workload(c, f"b-{number}", "b", name)
    for number in range(2):
        workload(c, f"a-{number}", "a")


def volcano(c: Cluster, running: str, waiting: str, **of_a: Any) -> None:
    for queue in "ab":
        add(c, VOLCANO, "Queue", queue, {"weight": 1, **(of_a if queue == "a" else {})},
            status={"state": "Open"})  # fmt: skip
    for name, queue in zip(c.nodes(4), running, strict=True):
        words = {"scheduling.volcano.sh/queue-name": queue}
        c.pod(gpus=8, node=name, ran=2000, annotations=words)
    for queue in waiting:
        c.pod(gpus=8, waited=600, annotations={"scheduling.volcano.sh/queue-name": queue})


def gang_of_ten(c: Cluster) -> None:
    c.nodes(6)
    add(c, VOLCANO, "PodGroup", "big", {"minMember": 10, "queue": "default"},
        namespace="research", status={"phase": "Inqueue"})  # fmt: skip
    for _ in range(10):
        c.pod(gpus=8, waited=3000, annotations={"scheduling.k8s.io/group-name": "big"})
        by(c, "volcano")
        said(c, "pod group is not ready, 10 Pending, 10 minAvailable")


def pods_of_sixteen(c: Cluster) -> None:
    c.busy(c.nodes(4)[:1])
    for _ in range(2):
        c.pod(gpus=16, waited=3000)


def event_of(c: Cluster, job: str, quota: str, used: int) -> None:
    about = {"kind": "Job", "name": job, "namespace": "research"}
    amount = f"requests.{GPU}"
    c.objects.append({
        "apiVersion": "v1", "kind": "Event", "involvedObject": about, "reason": "FailedCreate",
        "metadata": {"name": f"{job}.{len(c.objects):x}", "namespace": "research"},
        "message": f'Error creating: pods "{job}-abcde" is forbidden: exceeded quota: {quota},'
        f" requested: {amount}=8, used: {amount}={used}, limited: {amount}={used}",
    })  # fmt: skip


def quota_of_class(c: Cluster) -> None:
    """A ResourceQuota of one priority class, whose pods nobody can count here."""
    c.busy(c.nodes(4)[:1])
    hard = {f"requests.{GPU}": "8"}
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}
    add(c, "v1", "ResourceQuota", "high",
        {"hard": hard, "scopeSelector": {"matchExpressions": [scope]}},
        namespace="research", status={"hard": hard, "used": hard})  # fmt: skip
    for number in range(2):
        add(c, "batch/v1", "Job", f"urgent-{number}", {"parallelism": 1, "template": asking(8)},
            namespace="research")  # fmt: skip
        event_of(c, f"urgent-{number}", "high", 8)


def half_refused(c: Cluster) -> None:
    """Four ranks of eight, since a quota refuses the rest."""
    names = c.nodes(8)
    hard = {f"requests.{GPU}": "32"}
    add(c, "v1", "ResourceQuota", "gpus", {"hard": hard}, namespace="research",
        status={"hard": hard, "used": hard})  # fmt: skip
    add(c, "batch/v1", "Job", "pretrain",
        {"parallelism": 8, "completions": 8, "completionMode": "Indexed", "template": asking(8)},
        namespace="research")  # fmt: skip
    for number, name in enumerate(names[:4]):
        c.pod(gpus=8, node=name, ran=200, owner=("Job", "pretrain"), labels={
            "batch.kubernetes.io/job-completion-index": str(number), "job-name": "pretrain",
        })  # fmt: skip
    event_of(c, "pretrain", "gpus", 32)


def elastic_quota(c: Cluster) -> None:
    for name in c.nodes(6)[:3]:
        c.pod(gpus=8, node=name, ran=700)
    for _ in range(2):
        c.pod(gpus=8)
        said(c, "0/6 nodes are available: Pod research/train is rejected in PreFilter because"
             " ElasticQuota nlp is more than Max. preemption: 0/6 nodes are available: 6"
             " Preemption is not helpful for scheduling.")  # fmt: skip


def unknown_queue(c: Cluster, version: str, label: str) -> None:
    """Pods that name a queue which nobody has made, beside one that is there."""
    nodes = c.nodes(4)
    c.busy(nodes[:2])
    add(c, version, "Queue", "team", {})
    for _ in range(2):
        c.pod(gpus=8, labels={label: "taem"})


def inactive_queue(c: Cluster) -> None:
    """A ClusterQueue whose flavor is not there, and a Workload that only says that it is so."""
    nodes = c.nodes(4)
    c.busy(nodes[:2])
    cluster_queue(c, "small", 32, "")
    c.objects[-2]["status"] = {
        "conditions": [
            {
                "type": "Active",
                "status": "False",
                "reason": "FlavorNotFound",
                "message": "Can't admit new workloads: references missing ResourceFlavor(s): all.",
            }
        ]
    }
    workload(c, "a", "small")
    c.objects[-1]["status"]["conditions"][0] |= {
        "reason": "Inadmissible", "message": "ClusterQueue small is inactive"}  # fmt: skip


def kai_over_quota(c: Cluster) -> None:
    c.busy(c.nodes(4)[:2])
    told = ("Non-preemptible workload is over quota. Workload requested 8 GPUs, but nlp quota is 8"
            " GPUs, while 8 GPUs are already allocated for non-preemptible pods.")  # fmt: skip
    condition = {"type": "UnschedulableOnNodePool", "status": "True", "message": told}
    add(c, "scheduling.run.ai/v2alpha2", "PodGroup", "g", {"queue": "nlp", "minMember": 1},
        namespace="research", status={"schedulingConditions": [condition]})  # fmt: skip
    c.pod(gpus=8, waited=300, annotations={"pod-group-name": "g"})
    by(c, "kai-scheduler")


def gated(c: Cluster, minutes: float) -> None:
    c.busy(c.nodes(4)[:1])
    for _ in range(3):
        c.pod(gpus=8, waited=minutes)
        pod_of(c)["spec"]["schedulingGates"] = [{"name": "example.com/dataset-ready"}]


def of_a_department(c: Cluster) -> None:
    """Projects without limits, in a department that has all it may have."""
    api, names = "run.ai/v2", c.nodes(6)
    add(c, api, "Department", "science", {"resources": {"gpu": {"limit": 24}}})
    for project in "ab":
        add(c, api, "Project", project, {"parent": "science", "resources": {"gpu": {"limit": -1}}})
    for number in range(5):
        node = names[number] if number < 3 else None
        c.pod(gpus=8, node=node, ran=700, namespace=f"runai-{'ab'[number % 2]}")
        by(c, "runai-scheduler")


def given_up(c: Cluster, reason: str) -> None:
    """Workloads that Kueue, or somebody, has set inactive."""
    names = c.nodes(4)
    cluster_queue(c, "ml", 32, "")
    workload(c, "run", "ml", names[0])
    for number in range(2):
        workload(c, f"gone-{number}", "ml")
        pod_of(c)["spec"]["active"] = False
        pod_of(c)["status"] = {"conditions": [
            {"type": "Evicted", "status": "True", "reason": reason,
             "message": "The workload is deactivated"},
        ]}  # fmt: skip


def unanswered_webhook(c: Cluster) -> None:
    c.busy(c.nodes(3)[:1])
    for number in range(2):
        job = f"tune-{number}"
        add(c, "batch/v1", "Job", job, {"parallelism": 1, "template": asking(8)},
            namespace="research")  # fmt: skip
        event_of(c, job, "none", 0)
        pod_of(c)["message"] = (
            'Error creating: Internal error occurred: failed calling webhook "mutate.example.com":'
            " failed to call webhook: context deadline exceeded"
        )


def read_by_one_pod(c: Cluster) -> None:
    c.busy(c.nodes(3)[:1])
    c.pod(gpus=8)
    said(c, "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node has pod using"
         " PersistentVolumeClaim with the same name and ReadWriteOncePod access mode.")  # fmt: skip


def by_an_extender(c: Cluster) -> None:
    c.busy(c.nodes(3)[:1])
    c.pod(gpus=8)
    said(c, "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 NodeUnfitExtender: no"
         " fitting vGPU. preemption: 0/3 nodes are available: 3 Not helpful.")  # fmt: skip


def no_instance_type(c: Cluster) -> None:
    c.busy(c.nodes(2))
    for _ in range(2):
        name = c.pod(gpus=8, waited=200)
        event_of(c, name, "none", 0)
        pod_of(c)["involvedObject"]["kind"] = "Pod"
        pod_of(c)["reason"] = "FailedScheduling"
        pod_of(c)["message"] = (
            'Failed to schedule pod, incompatible with nodepool "gpu", daemonset overhead={},'
            ' no instance type satisfied resources {"nvidia.com/gpu":"8"}'
        )


# -- GPUs that are held


def given_by_limit_range(c: Cluster) -> None:
    given = (f"{GPU} {what} for container main" for what in ("request", "limit"))
    note = {LIMIT_RANGER: f"LimitRanger plugin set: {'; '.join(given)}"}
    for name in c.nodes(4):
        for _ in range(5):
            c.pod(gpus=1, node=name, ran=9000, cores=0.5, gigabytes=1, namespace="apps",
                  annotations=note)  # fmt: skip
    for _ in range(3):
        c.pod(gpus=8)


def cores_by_limit_range(c: Cluster, cores: float) -> None:
    note = {LIMIT_RANGER: "LimitRanger plugin set: cpu, memory request for container main"}
    for name in c.nodes(4):
        for _ in range(2):
            c.pod(gpus=1, node=name, cores=cores, gigabytes=400, ran=500, annotations=note)
        if cores < 90:
            c.busy([name], (6,))
    for _ in range(8):
        c.pod(gpus=1, cores=cores, gigabytes=400, annotations=note)


def placeholders(c: Cluster, priority: int) -> None:
    names = c.nodes(4)
    c.busy(names[:2])
    for name in names[2:]:
        c.pod(gpus=8, node=name, ran=9000, cores=1, gigabytes=1, prefix="headroom")
        pod_of(c)["spec"]["containers"][0]["image"] = "registry.k8s.io/pause:3.9"
        pod_of(c)["spec"]["priority"] = priority
    if priority >= 0:
        for _ in range(2):
            c.pod(gpus=8)


def of_yunikorn(c: Cluster) -> None:
    names = c.nodes(4)
    for name in names[:3]:
        c.pod(gpus=8, node=name, ran=300, prefix="tg-worker",
              annotations={"yunikorn.apache.org/placeholder": "true",
                           "yunikorn.apache.org/task-group-name": "worker"})  # fmt: skip
        pod_of(c)["spec"]["containers"][0]["image"] = "registry.k8s.io/pause:3.7"
    c.busy(names[3:])
    for _ in range(2):
        c.pod(gpus=8)


def notebooks(c: Cluster, hours: float) -> None:
    for node, name in enumerate(c.nodes(3)):
        for number in range(4):
            own = f"nb-{node}-{number}"
            c.pod(gpus=2, node=name, ran=15_000, namespace="users", labels={"notebook-name": own})
            add(c, "kubeflow.org/v1", "Notebook", own, {}, namespace="users",
                annotations={USED: stamp(60 * hours)})  # fmt: skip
    c.pod(gpus=8)


def for_init(c: Cluster, main: int) -> None:
    for name in c.nodes(4):
        c.pod(gpus=main, node=name, ran=5000, prefix="serve")
        pod_of(c)["spec"]["initContainers"] = [
            {"name": "convert", "resources": {"limits": {GPU: "8"}}}
        ]
    for _ in range(3):
        c.pod(gpus=4)


def asleep(c: Cluster, gpus: int) -> None:
    names = c.nodes(3)
    for name in names:
        c.pod(gpus=gpus, cores=8, node=name, ran=8600, prefix="dev")
        pod_of(c)["spec"]["containers"][0]["command"] = ["/bin/bash", "-c", "sleep infinity"]
        c.busy([name])
    for _ in range(2):
        c.pod(gpus=8, waited=300)


def in_init(c: Cluster) -> None:
    for name in c.nodes(4):
        c.pod(gpus=8, node=name, ran=400, phase="Pending", prefix="rag")
        waits = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
        pod_of(c)["status"]["containerStatuses"] = [waits]
    for _ in range(3):
        c.pod(gpus=8)


def graceful(c: Cluster) -> None:
    names = c.nodes(3)
    for name in names:
        c.pod(gpus=8, node=name, ran=900)
    about = next(o for o in c.objects if o["kind"] == "Pod" and o["spec"].get("nodeName")
                 == names[0] and GPU in str(o["spec"]))["metadata"]  # fmt: skip
    about |= {"deletionTimestamp": stamp(-1300), "deletionGracePeriodSeconds": 86400}
    c.pod(gpus=8, waited=140)


def reserved(c: Cluster) -> None:
    names = c.nodes(4)
    c.busy(names[:2])
    for number, name in enumerate(names[2:]):
        add(c, "scheduling.koordinator.sh/v1alpha1", "Reservation", f"demo-{number}",
            {"template": {"spec": {"containers": [{"resources": {"requests": {GPU: "8"}}}]}}},
            status={"phase": "Available", "nodeName": name, "allocatable": {GPU: "8"}})  # fmt: skip
    for _ in range(2):
        c.pod(gpus=8, waited=300)
        said(c, "0/4 nodes are available: 2 Insufficient nvidia.com/gpu, 2 Reservation(s) is"
             " unmatched node affinity.")  # fmt: skip


def ray_service(c: Cluster) -> None:
    names = c.nodes(2)
    for cluster in ("chat-aaaaa", "chat-bbbbb"):
        add(c, "ray.io/v1", "RayCluster", cluster, {}, namespace="research",
            ownerReferences=[{"kind": "RayService", "name": "chat"}])  # fmt: skip
    for name in (*names, "", ""):
        cluster = "chat-aaaaa" if name else "chat-bbbbb"
        c.pod(gpus=8, node=name or None, ran=5000, waited=240, owner=("RayCluster", cluster),
              labels={"ray.io/cluster": cluster})  # fmt: skip


# -- nodes that will not do


def uneven(c: Cluster) -> None:
    first = c.nodes(3, labels={ZONE: "a"})[0]
    c.busy(c.nodes(1, labels={ZONE: "b"}))
    c.pod(gpus=4, node=first, ran=900)
    for _ in range(4):
        c.pod(gpus=4)
        said(c, "0/4 nodes are available: 1 Insufficient nvidia.com/gpu, 3 node(s) didn't match pod"
             " topology spread constraints. no new claims to deallocate, preemption: 0/4 nodes are"
             " available: 3 Preemption is not helpful for scheduling.")  # fmt: skip


def unbound(c: Cluster) -> None:
    c.busy(c.nodes(4)[:2])
    for _ in range(2):
        c.pod(gpus=8)
        said(c, "0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims.")


def tainted(c: Cluster, key: str) -> None:
    names = c.nodes(6)
    c.busy(names[:3])
    for one in nodes_of(c, names[3:]):
        one["spec"]["taints"] = [{"key": key, "effect": "NoSchedule"}]
    for _ in range(3):
        c.pod(gpus=8, waited=200)


def single_strategy(c: Cluster, waiting: int) -> None:
    for _ in range(3):
        name = c.node(28, model="NVIDIA-A100-SXM4-80GB-MIG-2g.20gb")
        for _ in range(0 if waiting else 28):
            c.pod(gpus=1, node=name, cores=4, gigabytes=10, ran=500)
    for _ in range(waiting):
        c.pod(gpus=0, slices={"2g.20gb": 1})
    if not waiting:
        c.pod(gpus=1, cores=4, gigabytes=10, waited=100)


def no_such_class(c: Cluster) -> None:
    api = "resource.k8s.io/v1"
    for name in c.nodes(3, 0):
        devices = [{"name": f"gpu-{number}"} for number in range(8)]
        add(c, api, "ResourceSlice", f"{name}-gpus",
            {"driver": "gpu.nvidia.com", "nodeName": name, "devices": devices})  # fmt: skip
    add(c, api, "DeviceClass", "gpu.nvidia.com",
        {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]})  # fmt: skip
    asked = {"name": "gpu", "exactly": {"deviceClassName": "h100.example.com"}}
    add(c, api, "ResourceClaimTemplate", "one", {"spec": {"devices": {"requests": [asked]}}},
        namespace="research")  # fmt: skip
    for _ in range(4):
        c.pod(gpus=0, cores=8)
        claim = {"name": "g", "resourceClaimTemplateName": "one"}
        pod_of(c)["spec"]["resourceClaims"] = [claim]
        said(c, "request gpu: device class h100.example.com does not exist. still not schedulable,"
             " preemption: 0/3 nodes are available: 3 Preemption is not helpful.")  # fmt: skip


def chosen(c: Cluster, *, waiting_for: str = "", selector: dict[str, str] | None = None) -> None:
    names = c.nodes(4)
    c.busy(names[:2])
    for _ in range(2):
        c.pod(gpus=8, waited=300, model=waiting_for, selector=selector)


def unlabelled(c: Cluster) -> None:
    names = c.nodes(6)
    c.busy(names[:3])
    for one in nodes_of(c, names[3:]):
        del one["metadata"]["labels"]["nvidia.com/gpu.product"]
    for _ in range(3):
        c.pod(gpus=8, model="NVIDIA-H100-80GB-HBM3")


def of_another_architecture(c: Cluster) -> None:
    names = c.nodes(4, labels={"kubernetes.io/arch": "amd64"})
    c.nodes(4, 4, model="NVIDIA-GH200-480GB", labels={"kubernetes.io/arch": "arm64"})
    c.busy(names)
    for _ in range(4):
        c.pod(gpus=4, waited=300, selector={"kubernetes.io/arch": "amd64"})


def waits_its_turn(c: Cluster) -> None:
    names = c.nodes(6)
    c.busy(names)
    c.finished(names)
    add(c, VOLCANO, "PodGroup", "g", {"minMember": 6, "queue": "default"},
        namespace="research", status={"phase": "Inqueue"})  # fmt: skip
    for _ in range(6):
        c.pod(gpus=8, waited=200, annotations={"scheduling.k8s.io/group-name": "g"})


def debugged(c: Cluster) -> None:
    names = c.nodes(2)
    c.busy(names)
    c.pod(gpus=0, node=names[0], cores=0.1)
    pod_of(c)["spec"]["containers"][0]["command"] = ["sleep", "infinity"]


NLP = {"resources": {"gpu": {"deserved": 24, "limit": 24, "overQuotaWeight": 0}}}
POOLS = {"resources": [{"nodePool": "a", "gpu": {"limit": 16}}, {"gpu": {"limit": 8}}]}
DRAWN: dict[str, tuple[str, Callable[[Cluster], None]]] = {
    "a Project of Run:ai": ("quota-holds-back", lambda c: run_ai(c, NLP)),
    "node pools of Run:ai": ("quota-holds-back", lambda c: run_ai(c, POOLS)),
    "an old Project": ("quota-holds-back",
                       lambda c: run_ai(c, {"deservedGpus": 24, "maxAllowedGpus": 24}, "v1")),
    "priority in a queue": ("may-not-preempt", kueue_never_preempts),
    "lent and not taken back": ("not-taken-back", lent),
    "the weight 0": ("not-taken-back", weight_of_none),
    "not reclaimable": ("not-taken-back", lambda c: volcano(c, "aaaa", "bb", reclaimable=False)),
    "a gang of ten": ("larger-than-cluster", gang_of_ten),
    "pods of sixteen": ("larger-than-cluster", pods_of_sixteen),
    "a quota of one class": ("held-as-told", quota_of_class),
    "half refused": ("held-as-told", half_refused),
    "a Department of Run:ai": ("quota-holds-back", of_a_department),
    "given up by Kueue": ("held-as-told",
                          lambda c: given_up(c, "DeactivatedDueToRequeuingLimitExceeded")),
    "a webhook that is down": ("held-as-told", unanswered_webhook),
    "an extender": ("held-as-told", by_an_extender),
    "a volume of one pod": ("no-node-admits", read_by_one_pod),
    "no instance type": ("not-scaled-up", no_instance_type),
    "an ElasticQuota": ("held-as-told", elastic_quota),
    "KAI over quota": ("held-as-told", kai_over_quota),
    "a queue of KAI that is not there": (
        "quota-holds-back",
        lambda c: unknown_queue(c, "scheduling.run.ai/v2", "kai.scheduler/queue")),
    "a queue of Volcano that is not there": (
        "quota-holds-back",
        lambda c: unknown_queue(c, "scheduling.volcano.sh/v1beta1", "volcano.sh/queue-name")),
    "a flavor that is not there": ("quota-holds-back", inactive_queue),
    "a forgotten gate": ("held-as-told", lambda c: gated(c, 2900)),
    "GPUs by default": ("held-unused", given_by_limit_range),
    "cores by default": ("starved-of-cpu", lambda c: cores_by_limit_range(c, 90)),
    "headroom": ("held-unused", lambda c: placeholders(c, 0)),
    "placeholders of YuniKorn": ("held-unused", of_yunikorn),
    "notebooks": ("held-unused", lambda c: notebooks(c, 144)),
    "an init container": ("held-unused", lambda c: for_init(c, 1)),
    "sleeping pods": ("held-unused", lambda c: asleep(c, 8)),
    "init that waits": ("held-without-running", in_init),
    "a long grace period": ("held-without-running", graceful),
    "a reservation": ("reserved-for-nobody", reserved),
    "a RayService": ("rolling-update-waits", ray_service),
    "spread constraints": ("kept-apart", uneven),
    "unbound volumes": ("no-node-admits", unbound),
    "a start-up taint": ("closed-nodes", lambda c: tainted(c, "node.cilium.io/agent-not-ready")),
    "a scale-down": ("closed-nodes", lambda c: tainted(c, "ToBeDeletedByClusterAutoscaler")),
    "MIG as GPUs": ("mig-mismatch", lambda c: single_strategy(c, 6)),
    "a class of devices": ("no-node-admits", no_such_class),
    "a flavor's label": ("no-node-admits", lambda c: chosen(c, waiting_for="NVIDIA-H100-PCIe")),
    "a host by name": ("bound-to-some-nodes",
                       lambda c: chosen(c, selector={"kubernetes.io/hostname": "gpu-000"})),
    "no labels": ("bound-to-some-nodes", unlabelled),
    "another architecture": ("bound-to-some-nodes", of_another_architecture),
}  # fmt: skip
DRAWN_HEALTHY: dict[str, Callable[[Cluster], None]] = {
    "lent to others": lambda c: lent(c, 0),
    "lent until just now": lent_lately,
    "all of one priority": lambda c: kueue_never_preempts(c, 10_000),
    "set inactive by somebody": lambda c: given_up(c, "Deactivated"),
    "headroom below all": lambda c: placeholders(c, -10),
    "notebooks in use": lambda c: notebooks(c, 3),
    "small defaults": lambda c: cores_by_limit_range(c, 16),
    "even queues": lambda c: volcano(c, "abab", "ab"),
    "Run:ai without a limit": lambda c: (run_ai(c, {"resources": {"gpu": {"limit": -1}}}),
                                         c.objects.__delitem__(slice(-2, None)))[0],
    "a gate of today": lambda c: gated(c, 120),
    "init of as many": lambda c: for_init(c, 8),
    "its turn to come": waits_its_turn,
    "MIG that is in use": lambda c: single_strategy(c, 0),
    "a pod to look around": debugged,
}  # fmt: skip
