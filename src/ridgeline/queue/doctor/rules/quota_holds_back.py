"""A quota holds pods back while the GPUs that they ask for are free."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf

from ridgeline.queue.cohorts import QuotaTree
from ridgeline.queue.doctor.room import Room
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import GpuQuota, LiveCluster, LivePod, several
from ridgeline.queue.shares import QueueShare
from ridgeline.records.queue_finding import QueueFinding


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of pods that are held back by a quota that is used up, and would start without it."""
    available = _available(state)
    full = [quota for quota in state.quotas if _over(state, quota, available[quota.name])]
    held = [pod for pod in state.held_back if any(_counts(quota, pod) for quota in full)]
    if not held:
        return None
    room = Room(state)
    room.keep(state.running)
    room.starting([pod for pod in state.waiting if pod.num_gpus])  # these come first
    helped = room.starting([replace(pod, gated=False) for pod in held])
    if not helped:
        return None
    first = next(quota for quota in full if any(_counts(quota, pod) for pod in helped))
    lent = f", and cohort {first.cohort} lends it no more" if first.cohort else ""
    lost = sum(pod.num_gpus for pod in helped)
    return found(
        "quota-holds-back",
        lost_gpus=lost,
        counted="asked for by pods that a used-up quota holds back, and free",
        confidence=0.85,
        summary=f"{first.name} of {several(first.gpus, 'GPU')} is used up"
        f" ({_used(state, first)}{lent}), while {several(lost, 'GPU')} are free for"
        f" {several(len(helped), 'pod')} that it holds back",
        evidence={"quota_gpus": first.gpus, "used_gpus": _used(state, first),
                  "pods_held_back": len(held), "pods_that_would_start": len(helped)},
        where=[pod.name for pod in helped],
        filled={"quota": first.name, "name": first.name.rpartition(" ")[2],
                "gpus": str(first.gpus)},
    )  # fmt: skip


def _counts(quota: GpuQuota, pod: LivePod) -> bool:
    return f"{pod.name.partition('/')[0]}/{pod.quota}" in quota.queues


def _used(state: LiveCluster, quota: GpuQuota) -> int:
    return sum(pod.num_gpus for pod in state.running if _counts(quota, pod))


def _over(state: LiveCluster, quota: GpuQuota, available: float) -> bool:
    """Whether the smallest pod that it holds back would be too much."""
    asked = [pod.num_gpus for pod in state.held_back if _counts(quota, pod)]
    return bool(asked) and min(asked) > available


def _available(state: LiveCluster) -> dict[str, float]:
    """How many GPUs more each quota lets its pods have, with what its cohort lends now.

    Without end where the state shows nobody else of the cohort: what it lends is not known.
    """
    members = Counter(one.cohort for one in state.quotas)
    queues = {
        one.name: QueueShare(
            quota=one.gpus,
            cohort=one.cohort or f"of {one.name} alone",
            borrowing_limit=one.borrowing_limit,
            lending_limit=one.lending_limit,
        )
        for one in state.quotas
    }
    tree = QuotaTree((), queues, state.cohorts, 0.0)
    for one in state.quotas:
        tree.add(one.name, _used(state, one))
    return {
        one.name: inf
        if one.cohort and members[one.cohort] == 1 and one.cohort not in state.cohorts
        else tree.available(one.name)
        for one in state.quotas
    }
