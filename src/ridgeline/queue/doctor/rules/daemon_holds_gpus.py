"""A daemon holds a GPU of every node, so that pods of whole nodes fit nowhere."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import DAEMON, LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of waiting pods that would start if daemons held none."""
    daemons: dict[str, list[LivePod]] = defaultdict(list)
    for pod in state.running:
        if pod.num_gpus and pod.workload.startswith(DAEMON):
            daemons[pod.workload].append(pod)
    if not daemons:
        return None
    now = set(starting_now(state))
    waiting = {pod.name: pod for pod in state.waiting if pod.num_gpus}
    helped = [waiting[one] for one in starting_now(_without_daemons(state)) if one not in now]
    if not helped:
        return None
    worst = max(daemons, key=lambda name: (len(daemons[name]), name))
    held = sum(pod.num_gpus for pods in daemons.values() for pod in pods)
    lost = sum(pod.num_gpus for pod in helped)
    return found(
        "daemon-holds-gpus",
        lost_gpus=lost,
        counted="asked for by waiting pods that would start if daemons held no GPUs",
        confidence=0.95,
        summary=f"{worst} holds {several(held, 'GPU')} of"
        f" {several(len({pod.node for pod in daemons[worst]}), 'node')}:"
        f" {several(len(helped), 'pod')} of {several(lost, 'GPU')} would start without it",
        evidence={"held_gpus": held, "daemons": len(daemons),
                  "pods_that_would_start": len(helped)},
        where=[worst, *(pod.name for pod in helped)],
        filled={"name": worst.rpartition("/")[2],
                "namespace": worst.partition(" ")[2].partition("/")[0]},
    )  # fmt: skip


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """The daemons are gone."""
    return ClusterAhead(state=state), ClusterAhead(state=_without_daemons(state))


def _without_daemons(state: LiveCluster) -> LiveCluster:
    kept = [pod for pod in state.pods if not (pod.num_gpus and pod.workload.startswith(DAEMON))]
    return replace(state, pods=tuple(kept))
