"""What Kueue's quotas let their queues have, and what they have of it, as the state shows it."""

from __future__ import annotations

from collections import Counter
from math import inf

from ridgeline.queue.cohorts import QuotaTree
from ridgeline.queue.doctor.state import GpuQuota, LiveCluster, LiveNode, LivePod
from ridgeline.queue.shares import QueueShare


def counts(quota: GpuQuota, pod: LivePod) -> bool:
    """Whether a pod is in a queue that a quota is for."""
    return f"{pod.name.partition('/')[0]}/{pod.quota}" in quota.queues


def may_have(state: LiveCluster, quota: GpuQuota, pod: LivePod) -> bool:
    """Whether a quota counts a pod, and its flavor's nodes admit it; of no nodes nobody knows."""
    nodes = [node for node in state.nodes if quota.has(node)] if quota.labels else []
    return counts(quota, pod) and (not nodes or any(_admits(quota, node, pod) for node in nodes))


def used(state: LiveCluster, quota: GpuQuota) -> int:
    """GPUs of a quota that pods hold."""
    here = {node.name for node in state.nodes if quota.has(node)}
    return sum(pod.num_gpus for pod in state.running if counts(quota, pod) and pod.node in here)


def available(state: LiveCluster) -> list[float]:
    """How many GPUs more each quota lets its pods have, with what its cohort lends now.

    Without end where the state shows nobody else of the cohort: what it lends is not known.
    """
    trees = {flavor: _tree(state, flavor) for flavor in {one.flavor for one in state.quotas}}
    members = {one.name: one.cohort for one in state.quotas}
    in_cohort = Counter(members.values())
    return [
        inf
        if one.cohort and in_cohort[one.cohort] == 1 and one.cohort not in state.cohorts
        else trees[one.flavor].available(one.name)
        for one in state.quotas
    ]


def _tree(state: LiveCluster, flavor: str) -> QuotaTree:
    """The quotas of one flavor, with what is used of them."""
    quotas = [one for one in state.quotas if one.flavor == flavor]
    queues = {
        one.name: QueueShare(
            quota=one.gpus,
            cohort=one.cohort or f"of {one.name} alone",
            borrowing_limit=one.borrowing_limit,
            lending_limit=one.lending_limit,
        )
        for one in quotas
    }
    cohorts = {
        name: share.of_flavor(flavor) if flavor else share for name, share in state.cohorts.items()
    }
    tree = QuotaTree((), queues, cohorts, 0.0)
    for one in quotas:
        tree.add(one.name, used(state, one))
    return tree


def _admits(quota: GpuQuota, node: LiveNode, pod: LivePod) -> bool:
    left = [one for one in node.taints if not any(other.covers(one) for other in quota.tolerated)]
    return not pod.constraints.keeps_off(node.labels, left)
