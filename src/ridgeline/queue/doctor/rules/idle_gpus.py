"""Pods hold GPUs that compute nothing."""

from __future__ import annotations

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster
from ridgeline.records.queue_finding import QueueFinding

IDLE_SHARE = 0.05
RUNNING_SECONDS = 1800.0
"""A pod that runs for less may still load its data."""


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs allocated to pods that use them less than a twentieth of the time."""
    idle = [
        pod for pod in state.running
        if pod.num_gpus and state.used_share.get(pod.name, 1.0) < IDLE_SHARE
        and _running_seconds(state, pod.started_seconds) >= RUNNING_SECONDS
    ]  # fmt: skip
    if not idle:
        return None
    lost = sum(pod.num_gpus * (1.0 - state.used_share[pod.name]) for pod in idle)
    idle.sort(key=lambda pod: (-pod.num_gpus, pod.name))
    return found(
        "idle-gpus",
        lost_gpus=lost,
        counted="allocated and idle by what DCGM measured",
        confidence=0.85,
        summary=f"{several(len(idle), 'pod')} hold {several(sum(p.num_gpus for p in idle), 'GPU')}"
        f" and use them less than {IDLE_SHARE:.0%} of the time: {idle[0].name} {idle[0].num_gpus}"
        f" at {state.used_share[idle[0].name]:.1%}",
        evidence={"idle_pods": len(idle), "pods_measured": len(state.used_share)},
        where=[pod.name for pod in idle],
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """The pods are gone, and others have their GPUs."""
    gone = frozenset(finding.where)
    return ClusterAhead(state=state, idle=gone), ClusterAhead(state=state.without_pods(gone))


def _running_seconds(state: LiveCluster, started_seconds: float | None) -> float:
    if started_seconds is None or state.now_seconds is None:
        return float("inf")
    return state.now_seconds - started_seconds
