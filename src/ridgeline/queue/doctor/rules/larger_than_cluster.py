"""Pods wait that no node could hold, or gangs that all nodes could not, were they empty."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import Room, free_gpus
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import SLURM, LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding

PATIENCE_SECONDS = 1800.0
"""Nodes that an autoscaler adds have come by then."""

NOT_PLAYED = "what is larger than the cluster starts in no way"


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs that stand free for what would not start on an empty cluster either."""
    if state.scheduler == SLURM:  # it refuses such jobs, or says so itself
        return None
    groups: dict[str, list[LivePod]] = defaultdict(list)
    for pod in state.waiting:
        if pod.num_gpus and state.age_seconds(pod) >= PATIENCE_SECONDS:
            groups[_together(state, pod)].append(pod)
    known: dict[tuple[tuple[int, str], ...], bool] = {}
    too_large = []
    for pods in groups.values():
        shape = tuple(sorted((pod.num_gpus, pod.model) for pod in pods))
        if shape not in known:
            known[shape] = _fits_when_empty(state, pods)
        if not known[shape]:
            too_large += pods
    asked, free = sum(pod.num_gpus for pod in too_large), sum(free_gpus(state).values())
    if not too_large or not free:
        return None
    first = max(too_large, key=lambda pod: (pod.num_gpus, pod.name))
    largest = max((node.num_gpus for node in state.nodes), default=0)
    alone = first.num_gpus > largest
    members = len(groups[_together(state, first)])
    return found(
        "larger-than-cluster",
        way="" if alone else "gang",
        lost_gpus=min(asked, free),
        counted="asked for by pods that no free GPUs will ever be enough for, at most what is free",
        confidence=0.6,
        summary=f"{several(len(too_large), 'pod')} would not start if all nodes were empty:"
        + (f" {first.name} asks for {several(first.num_gpus, 'GPU')} of one node, where the"
           f" largest has {largest}" if alone else
           f" {first.group or first.workload} starts {several(members, 'pod')} of"
           f" {several(first.num_gpus, 'GPU')} together"),
        evidence={"pods": len(too_large), "asked_gpus": asked,
                  "gpus_of_the_largest_node": largest},
        where=[pod.name for pod in too_large],
        filled={"gpus": str(largest), "pod": first.name.rpartition("/")[2],
                "namespace": first.name.partition("/")[0]},
    )  # fmt: skip


def _together(state: LiveCluster, pod: LivePod) -> str:
    """What a pod starts with: its gang where that takes no fewer, else itself alone."""
    if not pod.gang or pod.workload in state.enough_pods:
        return pod.name
    return pod.group or (pod.workload if pod.ranks else pod.name)


def _fits_when_empty(state: LiveCluster, pods: list[LivePod]) -> bool:
    """Whether GPUs of nodes, whoever has them now and whatever they admit, would be enough."""
    most = max((node.num_gpus + node.broken_gpus for node in state.nodes), default=0)
    if len(pods) == 1:
        return pods[0].num_gpus <= most
    # A gang that is in part on nodes needs room for the rest alone: that is for other rules.
    asked = Counter(pod.workload for pod in pods)
    if any(pod.workload in asked and pod.node and not pod.done for pod in state.pods):
        return True
    room = Room(state, closed=True, pure_gpus=True, anywhere=True, healthy=True)
    together = [replace(pod, workload="all", ranks=True, model="") for pod in pods]
    return bool(room.starting(together))
