"""Pods are put on nodes with free GPUs, and the kubelet there refuses them, again and again."""

from __future__ import annotations

from collections import Counter, defaultdict

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import free_gpus
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding

OFTEN = 3
"""Fewer refusals of a workload may be of one moment."""

NOT_PLAYED = "what kubelet has given to whom is not in the state"


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs that refused workloads ask for, up to what is free on the nodes that refuse them."""
    by_workload = {name: pods for name, pods in _refused(state).items() if len(pods) >= OFTEN}
    if not by_workload:
        return None
    pods = [pod for several_pods in by_workload.values() for pod in several_pods]
    nodes = Counter(pod.node for pod in pods)
    free = free_gpus(state)
    asked = sum(max(pod.num_gpus for pod in some) for some in by_workload.values())
    lost = min(asked, sum(free.get(name, 0) for name in nodes))
    if lost <= 0:
        return None
    told = Counter(pod.refused for pod in pods if pod.refused).most_common(1)[0][0]
    worst = nodes.most_common(1)[0][0]
    on = f"kubelet on {worst}" if len(nodes) == 1 else f"kubelet on {several(len(nodes), 'node')}"
    return found(
        "refused-by-nodes",
        way=told.way,
        lost_gpus=lost,
        counted="asked for by workloads whose pods are refused, and free on nodes that refuse them",
        confidence=0.9,
        summary=f"{on} refused {several(len(pods), 'pod')} of"
        f" {several(len(by_workload), 'workload')} that it was given: {told.said}",
        evidence={"pods": len(pods), "workloads": len(by_workload), "nodes": len(nodes),
                  "asked_gpus": asked},
        where=[name for name, _ in nodes.most_common()],
        filled={"node": worst},
    )  # fmt: skip


def _refused(state: LiveCluster) -> dict[str, list[LivePod]]:
    """The refused pods of each workload of which none was taken in since."""
    taken: dict[str, float] = defaultdict(float)
    for pod in state.pods:
        if pod.node and not pod.refused:
            taken[pod.workload] = max(taken[pod.workload], pod.created_seconds or 0.0)
    found_by: dict[str, list[LivePod]] = defaultdict(list)
    for pod in state.pods:
        if pod.refused and pod.num_gpus and (pod.created_seconds or 0.0) >= taken[pod.workload]:
            found_by[pod.workload].append(pod)
    return found_by
