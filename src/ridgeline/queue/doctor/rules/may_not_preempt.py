"""Pods of higher priority wait behind others of less, since their class may evict nobody."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.quantity import several
from ridgeline.queue.doctor.quota_room import available, counts, may_have
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding

PATIENCE_SECONDS = 4 * 3600.0
"""Who may evict nobody is meant to wait; for longer than this, its priority is worth nothing."""


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of pods that have long waited and would start if those of less priority gave way."""
    ways = (_by_class(state), _by_queue(state))
    return max((one for one in ways if one), key=lambda one: one.lost_gpus, default=None)


def _by_class(state: LiveCluster) -> QueueFinding | None:
    """Pods with a class of `preemptionPolicy: Never`."""
    patient = [pod for pod in state.waiting if pod.num_gpus and not pod.may_preempt
               and state.age_seconds(pod) >= PATIENCE_SECONDS]  # fmt: skip
    if not patient:
        return None
    now = set(starting_now(state))
    least = min(pod.priority for pod in patient)
    after = set(starting_now(_without_less(state, least)))
    helped = [pod for pod in patient if pod.name in after - now]
    if not helped:
        return None
    lost, first = sum(pod.num_gpus for pod in helped), helped[0]
    less = [pod for pod in state.running if pod.num_gpus and pod.priority < least]
    return found(
        "may-not-preempt",
        lost_gpus=lost,
        counted="held by pods of less priority than waiting ones that would start on them",
        confidence=0.5,
        summary=f"{several(len(helped), 'pod')} of {several(lost, 'GPU')} wait behind"
        f" {several(len(less), 'pod')} of less priority: {first.name} of priority"
        f" {first.priority} has preemptionPolicy Never",
        evidence={"pods": len(helped), "pods_of_less_priority": len(less)},
        where=[pod.name for pod in helped],
        filled={"priority": str(first.priority)},
    )


def _by_queue(state: LiveCluster) -> QueueFinding | None:
    """Pods that a ClusterQueue holds back, and for which it evicts nobody of less priority."""
    best: QueueFinding | None = None
    for quota, left in zip(state.quotas, available(state), strict=True):
        held = [
            pod
            for pod in state.held_back
            if pod.num_gpus > left
            and may_have(state, quota, pod)
            and state.age_seconds(pod) >= PATIENCE_SECONDS
        ]
        if quota.preempts or quota.stopped or quota.inactive or not held:
            continue
        first = max(held, key=lambda pod: (pod.queue_priority, pod.name))
        less = [
            pod
            for pod in state.running
            if pod.num_gpus and counts(quota, pod) and pod.queue_priority < first.queue_priority
        ]
        urgent = [pod for pod in held if pod.queue_priority == first.queue_priority]
        lost = min(sum(pod.num_gpus for pod in urgent), sum(pod.num_gpus for pod in less))
        if lost < first.num_gpus or (best and best.lost_gpus >= lost):
            continue
        best = found(
            "may-not-preempt",
            way="queue",
            lost_gpus=lost,
            counted="held by pods of less priority than those that their queue holds back",
            confidence=0.5,
            summary=f"{several(len(urgent), 'pod')} of {several(lost, 'GPU')} wait behind"
            f" {several(len(less), 'pod')} of less priority in {quota.name}:"
            f" its withinClusterQueue is Never",
            evidence={"pods": len(urgent), "pods_of_less_priority": len(less)},
            where=[pod.name for pod in urgent],
            filled={"name": quota.name.rpartition(" ")[2]},
        )
    return best


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """The pods of less priority are evicted."""
    named = [pod for pod in state.pods if pod.name in set(finding.where)]
    if any(pod.gated for pod in named):
        return "whom a queue would evict for them, and what those would do then, is not played"
    least = min(pod.priority for pod in named)
    return ClusterAhead(state=state), ClusterAhead(state=_without_less(state, least))


def _without_less(state: LiveCluster, least: int) -> LiveCluster:
    """The cluster without running pods with GPUs that have less priority."""
    kept: list[LivePod] = [
        pod
        for pod in state.pods
        if not (pod.node and not pod.done and pod.num_gpus and pod.priority < least)
    ]
    return replace(state, pods=tuple(kept))
