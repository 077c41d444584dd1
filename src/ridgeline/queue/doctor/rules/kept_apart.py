"""Pods wait that must not lie beside others: by anti-affinity, a node's port, an even spread."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding

ANTI_AFFINITY, PORTS, SPREAD = "anti-affinity", "ports", "spread"
FEWEST = 2
"""One that waits may be what a rolling update makes before it ends another."""
_SAID = {
    ANTI_AFFINITY: "required anti-affinity keeps them off nodes that have one of their kind",
    PORTS: "they take a port of their node for themselves, as another pod there does",
    SPREAD: "kube-scheduler says that they would lie too unevenly (topologySpreadConstraints)",
}

NOT_PLAYED = "which pods keep others away is left out of what is simulated"


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of waiting pods that would start if they might lie beside others."""
    able = {pod.name: pod for pod in state.waiting if pod.num_gpus and _way(pod)}
    if not able:
        return None
    now = set(starting_now(state))
    helped = [
        able[name]
        for name in starting_now(_mingled(state))
        if name in able and (name not in now or able[name].says("spread"))
    ]
    if len(helped) < FEWEST:
        return None
    lost, first = sum(pod.num_gpus for pod in helped), helped[0]
    way = _way(first)
    return found(
        "kept-apart",
        way=way,
        lost_gpus=lost,
        counted="asked for by waiting pods that would start if they might lie beside others",
        confidence=0.85,
        summary=f"{several(len(helped), 'pod')} of {several(lost, 'GPU')} wait beside free GPUs:"
        f" {_SAID[way]} ({first.name})",
        evidence={"pods": len(helped), **{one: sum(_way(pod) == one for pod in helped)
                                          for one in _SAID}},
        where=[pod.name for pod in helped],
        filled={"ports": ", ".join(sorted(first.host_ports))},
    )  # fmt: skip


def _way(pod: LivePod) -> str:
    """By what a pod may be kept apart; empty: nothing."""
    if pod.says("spread"):
        return SPREAD
    if pod.constraints.apart:
        return ANTI_AFFINITY
    return PORTS if pod.host_ports else ""


def _mingled(state: LiveCluster) -> LiveCluster:
    """The cluster without what keeps pods apart."""
    pods = [
        replace(pod, constraints=replace(pod.constraints, apart=()), host_ports=frozenset())
        for pod in state.pods
    ]
    return replace(state, pods=tuple(pods))
