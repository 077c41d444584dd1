"""A cluster at one moment: nodes, pods, and templates of pods that are not there yet."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from ridgeline.queue.doctor.constraints import Constraints, Taint, Tolerated
from ridgeline.queue.shares import CohortShare

ANYWHERE = Constraints()
KUBERNETES, SLURM = "kubernetes", "slurm"
SETTLED_SECONDS = 300.0
"""A pod that waits for less may yet be placed in the ordinary course of things."""
NOT_READY = "not ready"
"""Why a node takes no pods of which nobody has heard."""
OUTLIVED = "ended beside others"
"""What stalls a pod whose containers with GPUs have ended, while others of it run on."""
ADMISSION_CHECK = "admission-check"
"""The way of a reason that Kueue's checks give, which may yet be met."""
GATE = "gate"
"""The way of a scheduling gate that somebody has to take away."""
CONFIGURING = "CONFIGURING"
"""What stalls a job of Slurm's whose nodes are being started for it."""
DAEMON = "DaemonSet "
"""How workloads begin that have a pod on each node."""
SCHEDULER = "scheduler"
"""The way of what a scheduler says of a pod that asks it for a node, whatever rules count."""
ToldOf: TypeAlias = Literal[
    "limit", "autoscaler", "volumes", "claims", "spread", "unscheduled", "restarts", "scheduler"
]
"""A thing that a clause of the cluster's is about.

Of a waiting pod: the limit that holds it back (Slurm's name of one, or a capped queue); why the
autoscaler adds no node for it; what kube-scheduler says of its volumes, of claims that no device
meets, of an uneven spread over nodes, and all that it says, cut short; the scheduler that the pod
names and that has not looked at it. Of a pod on a node: how often it was started anew.
"""
_PARTS = re.compile(r"(\d+)g\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldReason:
    """What the cluster itself says of why a pod does not start."""

    way: str
    """The kind of reason, which has a cure of its own."""
    said: str
    """The reason with its names and numbers, as a clause."""


PLACEHOLDER, DEFAULT, INIT = "placeholder", "default", "init"
NOTEBOOK, SLEEPING = "notebook", "sleeping"
"""Ways in which GPUs come to be held for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedGpus:
    """GPUs that a pod holds and does not use, by what its own objects say."""

    way: str
    """How that came about, which has a cure of its own."""
    gpus: int
    said: str
    """Why they are not used, as a clause after the pod's name."""
    since_seconds: float | None = None
    """Since when, in Unix time; none: nobody says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveNode:
    """One node with what pods may have of it."""

    name: str
    num_gpus: int
    """Whole GPUs that pods may have."""
    replicas: int = 1
    """How many of those a GPU is that pods share by time-slicing or MPS."""
    slices: dict[str, int] = field(default_factory=dict)
    """MIG slices by profile, as `3g.40gb`."""
    cpu_milli: int
    memory_bytes: int
    capped_by: str = ""
    """What lets jobs have fewer cores of it than there are; empty: nothing."""
    model: str = ""
    broken_gpus: int = 0
    """GPUs that it has beside, which their device plugin gives to no pod."""
    fault: str = ""
    """What the node itself says is wrong with its GPUs, as a clause; empty: nothing."""
    others: dict[str, int] = field(default_factory=dict)
    """Any further resource that pods may have of it, by name."""
    closed: str = ""
    """Why it takes no pods; empty: it does."""
    closed_way: str = ""
    """What closes it, of what has a cure of its own."""
    closed_seconds: float | None = None
    """Since when at the earliest, in Unix time: a node is no older; none: nobody says."""
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePod:
    """One pod, what it asks of a node, and what became of it."""

    name: str
    """Its name after its namespace, `team/train-0`."""
    workload: str
    """What it is a part of: `JobSet team/train`; its own name where it stands alone."""
    ranks: bool = False
    """Its workload computes only once all of its pods run."""
    node: str = ""
    """The node's name; empty: it waits for one."""
    num_gpus: int = 0
    """GPUs, replicas of shared ones among them."""
    shared_gpus: int = 0
    """How many of them are certainly replicas, by the name of what it asks for."""
    slices: dict[str, int] = field(default_factory=dict)
    cpu_milli: int = 0
    memory_bytes: int = 0
    others: dict[str, int] = field(default_factory=dict)
    """What it asks of any further resource, by name."""
    model: str = ""
    """The GPU model that it insists on."""
    labels: dict[str, str] = field(default_factory=dict)
    constraints: Constraints = ANYWHERE
    """The nodes that it may be on."""
    gang: bool = False
    """Something starts its workload whole or not at all."""
    group: str = ""
    """The group that it is started with, by its name after its namespace."""
    quota: str = ""
    """The queue that admitted it by its quota."""
    service: str = ""
    """What its workload is one generation of, as `RayService team/chat`."""
    queue: str = ""
    """The queue of another scheduler than Kueue that it is in."""
    topology: bool = False
    """Its admission looked for room on nodes as well."""
    gated: bool = False
    """It is held back on purpose, and asks for no node yet."""
    priority: int = 0
    """Who has less of it may be evicted for it."""
    may_preempt: bool = True
    queue_priority: int = 0
    """What its Workload has in Kueue's queues."""
    told: ToldReason | None = None
    """What the cluster says holds it back; none: nothing beyond what rules find by themselves."""
    told_of: Mapping[ToldOf, str] = field(default_factory=dict)
    """What the cluster says of single things, as clauses; see `ToldOf`."""
    unused: UnusedGpus | None = None
    defaulted: frozenset[str] = frozenset()
    """Resources that it did not ask for, and a LimitRange gave to it."""
    switched_off: str = ""
    """By which of its own settings its program sees none of its GPUs; empty: by none."""
    done: bool = False
    stalled: str = ""
    """Why it does not run though it is on a node, as `CrashLoopBackOff`; empty: it does."""
    stalled_by: ToldReason | None = None
    """What kubelet or a controller of volumes says keeps it so; none: nothing."""
    host_ports: frozenset[str] = frozenset()
    """Ports of its node that the pod takes for itself, as `TCP 8000`."""
    exclusive: bool = False
    """Its nodes are its own, whatever it leaves of them."""
    most_seconds: float | None = None
    """For how long it may run; none: nobody says."""
    deleted_seconds: float | None = None
    """When it should have been gone; none: nobody deleted it."""
    grace_seconds: float = 0.0
    """For how long it may go on from its deletion until then."""
    evicted: ToldReason | None = None
    """Who ended it before its time (scheduler, kubelet, node, api) and why; none: nobody."""
    refused: ToldReason | None = None
    """Why kubelet did not take it in, of a pod that a node refused."""
    created_seconds: float | None = None
    """Unix time, as the other two."""
    started_seconds: float | None = None
    ended_seconds: float | None = None

    def says(self, about: ToldOf) -> str:
        """What the cluster says of one thing about the pod; empty: nothing."""
        return self.told_of.get(about, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTemplate:
    """What the pods of a workload will ask for, of one resource in one container."""

    workload: str
    replicas: int
    resource: str
    requests: str | None
    limits: str | None
    suspended: bool = False
    """It is to have no pods for now."""
    of_a_pod: dict[str, float] = field(default_factory=dict)
    """What one pod counts for in a namespace's quota, by the quota's names of resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuQuota:
    """The GPUs that the pods of some queues may have at once."""

    name: str
    """The object that sets it, `ClusterQueue research`."""
    queues: tuple[str, ...]
    """The queues whose pods it counts, as `team/queue`."""
    gpus: int
    cohort: str = ""
    """Whom it borrows from and lends to; empty: nobody."""
    borrowing_limit: int | None = None
    """Most GPUs above its own; none: as many as the cohort lends."""
    lending_limit: int | None = None
    """Most of its own that others may have; none: all of them."""
    stopped: str = ""
    """What somebody stopped it by, as `Hold`; empty: it admits."""
    inactive: str = ""
    """Why it admits nobody by its own account; empty: it does."""
    flavor: str = ""
    """The flavor whose GPUs they are; empty: all of them."""
    labels: dict[str, str] = field(default_factory=dict)
    """What nodes of the flavor have."""
    strict: bool = False
    """Who does not fit keeps out all that come after it."""
    reclaims: bool = True
    """What its cohort has lent of it is taken back for its own pods."""
    preempts: bool = True
    """Pods of it may be evicted for others of it that have more priority."""
    weight: float = 1.0
    """How much it counts for where a cohort shares fairly what nobody owns."""
    tolerated: tuple[Tolerated, ...] = ()
    """Taints of these nodes that admission lets its pods stand."""

    def has(self, node: LiveNode) -> bool:
        """Whether a node's GPUs are of its flavor."""
        return all(node.labels.get(key) == value for key, value in self.labels.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedQueue:
    """A queue of another scheduler than Kueue, which may have so many GPUs and no more."""

    kind: str
    """Whose it is, `volcano`, `kai`, `runai` or `yunikorn`."""
    resource: str
    """The resource that its limit names."""
    most: int
    """The most GPUs of its pods together; below zero: it has no limit of its own."""
    parent: str = ""
    closed: bool = False
    """It takes nobody in, whatever it may have."""
    weight: float = 0.0
    """Its part of all GPUs is in proportion to this; 0: they are not shared so."""
    reclaimable: bool = True
    """What it has above its share may be taken from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceQuota:
    """One resource of a namespace, beyond which a ResourceQuota refuses its pods."""

    name: str
    """Its name after its namespace."""
    resource: str
    hard: float
    used: float
    gpus: bool
    """Whether what it counts is GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldForNobody:
    """GPUs that a claim, a group or a workload keeps, and none of its pods is there."""

    name: str
    """Who keeps them, by kind and name."""
    way: str
    """The kind in short, which has a cure of its own."""
    gpus: int
    since_seconds: float | None = None
    """When it was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCluster:
    """Everything that was read."""

    nodes: tuple[LiveNode, ...]
    pods: tuple[LivePod, ...]
    num_homeless: int = 0
    """Pods that run on nodes which were not given, and are left out: their node may be gone."""
    num_unlisted_gpus: int = 0
    """GPUs and slices that nodes say are in use by jobs which were not given."""
    num_unknown_claims: int = 0
    """Pods that claim devices of which no claim was given."""
    num_fractions: int = 0
    """Pods that ask for a part of a GPU by an annotation, which other pods hold for them."""
    templates: tuple[AskedTemplate, ...] = ()
    quotas: tuple[GpuQuota, ...] = ()
    cohorts: dict[str, CohortShare] = field(default_factory=dict)
    """What cohorts have beside the quotas of their queues, and which they are part of."""
    local_queues: frozenset[str] = frozenset()
    """Queues that pods may name, as `team/queue`; empty: nobody knows."""
    stopped_queues: dict[str, str] = field(default_factory=dict)
    """The queues among them that somebody stopped, and by what."""
    capped_queues: dict[str, CappedQueue] = field(default_factory=dict)
    """Queues of Volcano or KAI by name; a pod that is too much for one has it as its `limit`."""
    namespace_quotas: tuple[NamespaceQuota, ...] = ()
    for_nobody: tuple[HeldForNobody, ...] = ()
    enough_pods: dict[str, int] = field(default_factory=dict)
    """Pods with which an elastic workload computes, by the workload."""
    notes: tuple[str, ...] = ()
    """What was taken for granted in reading it."""
    settings: dict[str, str] = field(default_factory=dict)
    """What slurm.conf says, by its parameters in small letters, and sdiag of backfill."""
    scheduler: str = KUBERNETES
    """Whose state it is, in whose words cures are given."""
    used_share: dict[str, float] = field(default_factory=dict)
    """Mean utilisation of a pod's GPUs, 0 to 1, by the pod's name; empty: nobody measured."""
    now_seconds: float | None = None
    """The latest time that the state mentions."""

    @property
    def running(self) -> list[LivePod]:
        """Pods that hold what they asked for."""
        return [pod for pod in self.pods if pod.node and not pod.done]

    @property
    def not_let_in(self) -> list[LivePod]:
        """Pods with GPUs that a queue holds back, however new they are."""
        return [
            pod for pod in self.pods if pod.gated and not (pod.node or pod.done) and pod.num_gpus
        ]

    @property
    def held_back(self) -> list[LivePod]:
        """Pods with GPUs that a queue holds back, for so long that it says something."""
        return [pod for pod in self.not_let_in if self.age_seconds(pod) >= SETTLED_SECONDS]

    @property
    def without_node(self) -> list[LivePod]:
        """Pods with GPUs that have no node yet, however new they are."""
        return [
            pod
            for pod in self.pods
            if not (pod.node or pod.done or pod.gated) and (pod.num_gpus or pod.slices)
        ]

    @property
    def waiting(self) -> list[LivePod]:
        """Pods with GPUs that have waited for a node so long that it says something."""
        return [pod for pod in self.without_node if self.age_seconds(pod) >= SETTLED_SECONDS]

    @property
    def waiting_without_gpus(self) -> list[LivePod]:
        """Pods without GPUs that have waited for so long, as a job's launcher or head."""
        return [
            pod
            for pod in self.pods
            if not (pod.node or pod.done or pod.gated or pod.num_gpus or pod.slices)
            and self.age_seconds(pod) >= SETTLED_SECONDS
        ]

    def age_seconds(self, pod: LivePod) -> float:
        """Since a pod was made; without end where no time is known."""
        if pod.created_seconds is None or self.now_seconds is None:
            return float("inf")
        return self.now_seconds - pod.created_seconds

    def with_pods(self, names: Collection[str], **changed: Any) -> LiveCluster:
        """The same cluster with fields of some of its pods changed."""
        pods = (replace(pod, **changed) if pod.name in names else pod for pod in self.pods)
        return replace(self, pods=tuple(pods))

    def without_pods(self, names: Collection[str]) -> LiveCluster:
        """The same cluster without some of its pods."""
        return replace(self, pods=tuple(pod for pod in self.pods if pod.name not in names))

    def used_slices(self) -> dict[str, dict[str, int]]:
        """Slices in use, by node and profile."""
        used: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for pod in self.running:
            for profile, number in pod.slices.items():
                used[pod.node][profile] += number
        return used


def slice_share(profile: str) -> float:
    """The part of a GPU that a MIG profile is, by its compute slices, of seven.

    >>> round(slice_share("3g.40gb"), 3)
    0.429
    """
    found = _PARTS.match(profile)
    return int(found[1]) / 7.0 if found else 0.0
