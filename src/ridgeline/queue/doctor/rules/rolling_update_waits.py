"""New pods of a rolling update wait for GPUs that the old ones hold until the new ones run."""

from __future__ import annotations

from collections import defaultdict

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding

PATIENCE_SECONDS = 900.0
_REPLICAS = "ReplicaSet "


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of new pods that wait while as many old ones of the same service run."""
    stuck = _stuck(state)
    if not stuck:
        return None
    lost = sum(pod.num_gpus for pod in stuck)
    name = _of_service(stuck[0])
    ray = bool(stuck[0].service)
    return found(
        "rolling-update-waits",
        way="ray" if ray else "",
        lost_gpus=lost,
        counted="asked for by new pods of services whose old pods hold what they wait for",
        confidence=0.9,
        summary=f"{several(len(stuck), 'new pod')} of the rolling update of {name}"
        f" {'wait' if len(stuck) > 1 else 'waits'} for {several(lost, 'GPU')} that its old pods"
        f" hold until the new ones run{'' if ray else ' (maxSurge)'}: it does not end",
        evidence={"new_pods": len(stuck)},
        where=[pod.name for pod in stuck],
        filled={
            "name": name.rpartition("/")[2],
            "namespace": name.rpartition(" ")[2].partition("/")[0],
        },
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """For each new pod that waits an old one goes."""
    waiting = [_of_service(pod) for pod in state.waiting if pod.name in set(finding.where)]
    new = {pod.workload for pod in state.waiting if pod.name in set(finding.where)}
    gone = set()
    for name in waiting:
        old = [pod.name for pod in state.running if _of_service(pod) == name
               and pod.workload not in new and pod.name not in gone]  # fmt: skip
        gone |= set(old[:1])
    return ClusterAhead(state=state), ClusterAhead(state=state.without_pods(gone))


def _stuck(state: LiveCluster) -> list[LivePod]:
    old: dict[str, set[str]] = defaultdict(set)
    for pod in state.running:
        if pod.num_gpus and (name := _of_service(pod)):
            old[name].add(pod.workload)
    new = [
        pod for pod in state.waiting
        if pod.num_gpus and state.age_seconds(pod) >= PATIENCE_SECONDS
        and any(one != pod.workload for one in old.get(_of_service(pod), ()))
    ]  # fmt: skip
    now = set(starting_now(state)) if new else set()
    return [pod for pod in new if pod.name not in now]


def _of_service(pod: LivePod) -> str:
    """The service of a pod, or its deployment; empty: it is of none.

    A deployment is the name of the pod's replica set without its hash.
    """
    if pod.service:
        return pod.service
    hashed = pod.labels.get("pod-template-hash", "")
    name = pod.workload.removeprefix(_REPLICAS)
    own = pod.workload.startswith(_REPLICAS) and hashed and name.endswith(f"-{hashed}")
    return name.removesuffix(f"-{hashed}") if own else ""
