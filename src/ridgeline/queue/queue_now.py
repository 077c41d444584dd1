"""What runs on a cluster now and what waits there: all that a waiting time is estimated from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.queue.doctor.constraints import HARD, Taint, Tolerated
from ridgeline.queue.doctor.state import ADMISSION_CHECK, LiveCluster, LiveNode, LivePod
from ridgeline.queue.gpu_kinds import same_kinds
from ridgeline.queue.readers.kube_kinds import KIND_LABELS

PODS_CURE = "keep finished pods (ttlSecondsAfterFinished), or print the state later"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldNow:
    """A job that holds GPUs."""

    num_gpus: int
    age_seconds: float
    limit_seconds: float | None = None
    """After which it is ended; None: it runs as long as it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedNow:
    """A job that waits."""

    num_gpus: int
    limit_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNow:
    """The nodes that a job may be given, and whom it shares them with."""

    node_gpus: tuple[int, ...]
    """GPUs of each node that takes jobs."""
    running: tuple[HeldNow, ...]
    waiting: tuple[AskedNow, ...]
    """Jobs that come before a new one, the first of them first."""
    ended_seconds: tuple[float, ...]
    """How long runs lasted that have ended."""
    policy: str
    """The one of ours by which the cluster starts what waits."""
    cure: str
    """What to do where too few runs have ended."""


def queue_of_pods(
    state: LiveCluster,
    selector: Mapping[str, str] | None = None,
    tolerated: Iterable[Tolerated] = (),
    resource: str = "nvidia.com/gpu",
) -> QueueNow:
    """The queue of a Kubernetes cluster: pods, and those that start together as one.

    Of the nodes that a job selects by their labels (a kind of GPU, a pool) and whose taints it
    stands: who runs on them, and who waits and might be put there.

    Args:
        state: The cluster.
        selector: Labels of the nodes that the job selects.
        tolerated: Taints that it stands.
        resource: What it asks for, whose taint the server lets pods stand in many clusters
            (admission by ExtendedResourceToleration): in those where all pods with GPUs do.

    Raises:
        InputError: There are no such nodes.
    """
    stands = list(tolerated)
    with_gpus = [pod for pod in state.pods if pod.num_gpus]
    added = Taint(key=resource)
    if with_gpus and all(
        any(one.key and one.covers(added) for one in pod.constraints.tolerated) for pod in with_gpus
    ):
        stands.append(Tolerated(key=resource, operator="Exists"))
    mine = _admitting(_nodes(state, selector or {}), stands)
    names = {one.name for one in mine}
    return QueueNow(
        node_gpus=tuple(one.num_gpus for one in mine),
        running=tuple(
            HeldNow(num_gpus=pod.num_gpus, age_seconds=_age_seconds(state, pod))
            for pod in state.running
            if pod.num_gpus and pod.node in names
        ),
        waiting=tuple(AskedNow(num_gpus=gpus) for gpus in _workloads(state, mine)),
        ended_seconds=tuple(_lasted(state)),
        policy="fifo-skip",
        cure=PODS_CURE,
    )


def _nodes(state: LiveCluster, selector: Mapping[str, str]) -> list[LiveNode]:
    """Nodes with GPUs that take pods, of those that are selected."""
    having = [one for one in state.nodes if one.num_gpus and not one.closed]
    mine = [one for one in having if all(_has(one, *label) for label in selector.items())]
    if having and not mine:
        asked = ", ".join(f"{name}={value}" for name, value in selector.items())
        kinds = ", ".join(sorted({one.model for one in having if one.model})) or "no kind of GPU"
        raise InputError(
            f"--state: kubernetes.node_selector is {asked}, which no node with GPUs has that takes"
            f" pods; their labels tell {kinds}"
        )
    return mine


def _admitting(nodes: Sequence[LiveNode], tolerated: Sequence[Tolerated]) -> list[LiveNode]:
    """The nodes whose taints a job stands."""
    kept_off = {
        one.name: taint
        for one in nodes
        for taint in one.taints
        if taint.effect in HARD and not any(each.covers(taint) for each in tolerated)
    }
    mine = [one for one in nodes if one.name not in kept_off]
    if nodes and not mine:
        taints = sorted({f"{one.key}={one.value}:{one.effect}" for one in kept_off.values()})
        raise InputError(
            f"--state: all {len(nodes)} nodes with GPUs that the run could have keep it off by"
            f" taints ({', '.join(taints)}); add them to kubernetes.tolerations"
        )
    return mine


def _has(node: LiveNode, name: str, value: str) -> bool:
    """Whether a node has a label; where it tells a GPU alone, as a CSV does, whether it is that."""
    if node.labels or name not in KIND_LABELS:
        return node.labels.get(name) == value
    return bool(same_kinds(value, {node.model}))


def _lasted(state: LiveCluster) -> list[float]:
    return [
        pod.ended_seconds - pod.started_seconds
        for pod in state.pods
        if pod.done and pod.num_gpus and pod.started_seconds is not None
        and pod.ended_seconds is not None and pod.ended_seconds > pod.started_seconds
    ]  # fmt: skip


def _age_seconds(state: LiveCluster, pod: LivePod) -> float:
    if pod.started_seconds is None or state.now_seconds is None:
        return 0.0
    return max(0.0, state.now_seconds - pod.started_seconds)


def _workloads(state: LiveCluster, nodes: Sequence[LiveNode]) -> list[int]:
    """GPUs of the workloads that wait for any of some nodes, the oldest first; ranks together.

    What a queue has not let in yet is ahead as well; what it never will let in is not.
    """
    gpus: dict[str, int] = {}
    to_come = [pod for pod in state.not_let_in if _will_be_let_in(state, pod)]
    for pod in sorted(
        [*state.without_node, *to_come], key=lambda one: (one.created_seconds or 0.0, one.name)
    ):
        admitted = any(not pod.constraints.keeps_off(one.labels, one.taints) for one in nodes)
        if pod.num_gpus and admitted:
            name = pod.workload if pod.ranks else pod.name
            gpus[name] = gpus.get(name, 0) + pod.num_gpus
    return list(gpus.values())


def _will_be_let_in(state: LiveCluster, pod: LivePod) -> bool:
    """Whether a queue holds a pod back that is not stopped, for want of quota or by a check."""
    queue = f"{pod.name.partition('/')[0]}/{pod.quota}"
    stopped = queue in state.stopped_queues or any(
        one.stopped and queue in one.queues for one in state.quotas
    )
    in_time = pod.told is None or pod.told.way == ADMISSION_CHECK
    return bool(pod.quota or pod.says("limit")) and in_time and not stopped
