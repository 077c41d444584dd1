"""Workloads are started and evicted again and again, and pay for each start."""

from __future__ import annotations

from collections import Counter, defaultdict

from ridgeline import quantity
from ridgeline.quantity import several
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding

OFTEN = 3
_BY = {
    "scheduler": "evicted", "node": "ended with its node (reclaimed, lost or shut down)",
    "kubelet": "evicted by the kubelet of its node",
    "api": "evicted through the API (a drain, or the autoscaler's consolidation)",
}  # fmt: skip
SHORT_SECONDS = 3600.0
"""A run that was evicted after less has hardly paid for its start and its last checkpoint."""

NOT_PLAYED = "when the jobs that evict come again is not in the state"


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs that evicted short runs held, as a mean over the time in which that happened."""
    evicted: dict[str, list[LivePod]] = defaultdict(list)
    for pod in state.pods:
        if pod.evicted and pod.num_gpus and _ran_seconds(pod) <= SHORT_SECONDS:
            evicted[pod.workload].append(pod)
    often = {name: pods for name, pods in evicted.items() if len(pods) >= OFTEN}
    if not often:
        return None
    pods = [pod for several_pods in often.values() for pod in several_pods]
    begins = min(pod.started_seconds or 0.0 for pod in pods)
    ends = max(pod.ended_seconds or 0.0 for pod in pods)
    held = sum(pod.num_gpus * _ran_seconds(pod) for pod in pods)
    lost = held / max(ends - begins, 1.0)
    worst = max(often, key=lambda name: len(often[name]))
    told = Counter(pod.evicted for pod in often[worst] if pod.evicted).most_common(1)[0][0]
    who, why = told.way, f" ({told.said})" if told.way == "kubelet" else ""
    return found(
        "preemption-thrash",
        way="" if who == "scheduler" else who,
        lost_gpus=lost,
        counted="held by short runs that were evicted, as a mean over that time",
        confidence=0.85,
        summary=f"{worst} was {_BY[who]} {len(often[worst])} times after"
        f" {quantity.seconds(_ran_seconds(often[worst][0]))} or so{why};"
        f" {several(held / 3600, 'GPU-hour')} of {several(len(pods), 'run')} in"
        f" {quantity.seconds(ends - begins)} were given up",
        evidence={
            "evictions": len(pods),
            "workloads": len(often),
            "gpu_seconds_given_up": held,
            "window_seconds": ends - begins,
        },
        where=sorted(often, key=lambda name: -len(often[name])),
    )


def _ran_seconds(pod: LivePod) -> float:
    if pod.started_seconds is None or pod.ended_seconds is None:
        return float("inf")
    return pod.ended_seconds - pod.started_seconds
