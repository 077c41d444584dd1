"""A quota holds pods back while the GPUs that they ask for are free."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.quantity import several
from ridgeline.queue.doctor.closed_queues import (
    limited,
    missing,
    namespace_full,
    not_there,
    stopped,
)
from ridgeline.queue.doctor.cluster_ahead import BeforeAndCured, ClusterAhead
from ridgeline.queue.doctor.quota_room import available, may_have, used
from ridgeline.queue.doctor.room import starting_if_let
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import GpuQuota, LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of pods that a queue or quota holds back, and that would start without it."""
    ways = (
        used_up(state), stopped(state), missing(state), not_there(state), namespace_full(state),
        limited(state),
    )  # fmt: skip
    return max((one for one in ways if one), key=lambda one: one.lost_gpus, default=None)


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """The pods that it would start are let in."""
    let_in = set(finding.where)
    if not any(pod.name in let_in for pod in state.held_back):
        return "what is held back has no pods yet, and which nodes those may be on is not read"
    after = state.with_pods(let_in, gated=False)
    return ClusterAhead(state=state), ClusterAhead(state=after)


def used_up(state: LiveCluster) -> QueueFinding | None:
    """GPUs of pods that are held back by a quota that is used up, and would start without it."""
    left_of = available(state)
    full = [
        quota for quota, left in zip(state.quotas, left_of, strict=True)
        if _over(state, quota, left)
    ]  # fmt: skip
    held = [pod for pod in state.held_back if _is_held(state, pod, full)]
    if not held:
        return None
    helped = starting_if_let(state, held)
    if not helped:
        return None
    first = next(quota for quota in full if any(may_have(state, quota, pod) for pod in helped))
    lent = f", and cohort {first.cohort} lends it no more" if first.cohort else ""
    if first.cohort and first.borrowing_limit is not None:
        lent += f" (borrowingLimit {first.borrowing_limit})"
    lost = sum(pod.num_gpus for pod in helped)
    return found(
        "quota-holds-back",
        lost_gpus=lost,
        counted="asked for by pods that a used-up quota holds back, and free",
        confidence=0.85,
        summary=f"{_named(first)} of {several(first.gpus, 'GPU')} is used up"
        f" ({used(state, first)}{lent}), while {several(lost, 'GPU')} are free for"
        f" {several(len(helped), 'pod')} that it holds back",
        evidence={"quota_gpus": first.gpus, "used_gpus": used(state, first),
                  "pods_held_back": len(held), "pods_that_would_start": len(helped)},
        where=[pod.name for pod in helped],
        filled={"quota": first.name, "name": first.name.rpartition(" ")[2],
                "gpus": str(first.gpus)},
    )  # fmt: skip


def _is_held(state: LiveCluster, pod: LivePod, full: Sequence[GpuQuota]) -> bool:
    """Whether all quotas are used up of which a pod could be."""
    able = [quota for quota in state.quotas if may_have(state, quota, pod)]
    return bool(able) and all(any(one is quota for one in full) for quota in able)


def _named(quota: GpuQuota) -> str:
    return f"flavor {quota.flavor} of {quota.name}" if quota.flavor else quota.name


def _over(state: LiveCluster, quota: GpuQuota, left: float) -> bool:
    """Whether the smallest pod that it holds back would be too much."""
    asked = [pod.num_gpus for pod in state.held_back if may_have(state, quota, pod)]
    return bool(asked) and min(asked) > left
