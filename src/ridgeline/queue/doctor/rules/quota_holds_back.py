"""A quota holds pods back while the GPUs that they ask for are free."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.queue.doctor.room import Room
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import GpuQuota, LiveCluster, LivePod, several
from ridgeline.records.queue_finding import QueueFinding


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of pods that are held back by a quota that is used up, and would start without it."""
    full = [quota for quota in state.quotas if _over(state, quota)]
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
    lost = sum(pod.num_gpus for pod in helped)
    return found(
        "quota-holds-back",
        lost_gpus=lost,
        counted="asked for by pods that a used-up quota holds back, and free",
        confidence=0.85,
        summary=f"{first.name} of {several(first.gpus, 'GPU')} is used up"
        f" ({_used(state, first)}), while {several(lost, 'GPU')} are free for"
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


def _over(state: LiveCluster, quota: GpuQuota) -> bool:
    """Whether the smallest pod that it holds back would be too much."""
    asked = [pod.num_gpus for pod in state.held_back if _counts(quota, pod)]
    return bool(asked) and not quota.borrows and _used(state, quota) + min(asked) > quota.gpus
