"""A quota holds pods back while the GPUs that they ask for are free.

Some queues let nobody in, whatever their quota: stopped, not there, or a namespace's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.quantity import several
from ridgeline.queue.doctor.quota_room import available, may_have, used
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, free_gpus, starting_if_let
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import (
    AskedTemplate,
    GpuQuota,
    LiveCluster,
    LivePod,
    NamespaceQuota,
)
from ridgeline.records.kube_quantity import parse_quantity
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


CAUSE = "quota-holds-back"
_NAMED = 6
"""So many queues are named at most."""
COUNTED = "asked for by pods that a queue holds back, and free"


def stopped(state: LiveCluster) -> QueueFinding | None:
    """GPUs of pods whose queue somebody has stopped, or that admits nobody by its own account."""
    by_queue = {name: f"LocalQueue {name}" for name in state.stopped_queues}
    policies = {f"LocalQueue {name}": why for name, why in state.stopped_queues.items()}
    for quota in state.quotas:
        if quota.stopped:
            by_queue |= dict.fromkeys(quota.queues, quota.name)
            policies[quota.name] = quota.stopped
        elif quota.inactive:
            by_queue |= dict.fromkeys(quota.queues, quota.name)
    helped = starting_if_let(state, [pod for pod in state.held_back if _queue(pod) in by_queue])
    if not helped:
        return None
    first = by_queue[_queue(helped[0])]
    if first not in policies:
        why = next(one.inactive for one in state.quotas if one.name == first)
        return _held_back(state, helped, "inactive", f"{first} is inactive: {why}",
                          {"quota": first, "name": first.rpartition(" ")[2]})  # fmt: skip
    return _held_back(
        state, helped, "stopped",
        f"{first} is stopped (stopPolicy {policies[first]})",
        {"quota": first, "name": first.rpartition(" ")[2].rpartition("/")[2]},
    )  # fmt: skip


def missing(state: LiveCluster) -> QueueFinding | None:
    """GPUs of pods that name a queue which is not there."""
    if not state.local_queues:
        return None
    queues = [quota.name.rpartition(" ")[2] for quota in state.quotas]
    held = [
        pod for pod in state.held_back
        if pod.quota and pod.quota not in queues and _queue(pod) not in state.local_queues
    ]  # fmt: skip
    helped = starting_if_let(state, held)
    if not helped:
        return None
    namespace, _, name = _queue(helped[0]).partition("/")
    return _held_back(
        state, helped, "missing", f"there is no LocalQueue {name} in namespace {namespace}",
        {"name": name, "namespace": namespace, "cluster_queue": (queues or ["gpus"])[0]},
    )  # fmt: skip


def not_there(state: LiveCluster) -> QueueFinding | None:
    """GPUs of pods that name a queue of Volcano or KAI which is not there."""
    queues = state.capped_queues
    if not queues:
        return None
    held = [pod for pod in state.held_back if pod.queue and pod.queue not in queues]
    helped = starting_if_let(state, held)
    if not helped:
        return None
    name, kind = helped[0].queue, next(iter(queues.values())).kind
    return _held_back(
        state, helped, f"{kind}-missing",
        f"there is no Queue {name} (there are {', '.join(sorted(queues)[:_NAMED])})",
        {"name": name},
    )  # fmt: skip


def limited(state: LiveCluster) -> QueueFinding | None:
    """GPUs of what a limit holds back: of Slurm's users, accounts and QOS, of Volcano's, KAI's."""
    helped = starting_if_let(state, [pod for pod in state.held_back if pod.says("limit")])
    if not helped:
        return None
    first = helped[0].says("limit")
    queue = state.capped_queues.get(first)
    if queue is not None and queue.closed:
        return _held_back(state, helped, f"{queue.kind}-closed", f"Queue {first} is closed",
                          {"name": first})  # fmt: skip
    if queue is not None:
        of_runai = (
            "Department"
            if first in {one.parent for one in state.capped_queues.values()}
            else "Project"
        )
        kind = of_runai if queue.kind == "runai" else "Queue"
        return _held_back(
            state, helped, queue.kind,
            f"{kind} {first} has all of the {several(queue.most, 'GPU')} that it may have",
            {"quota": f"{kind} {first}", "name": first, "kind": kind, "resource": queue.resource,
             "gpus": str(queue.most)},
        )  # fmt: skip
    return _held_back(state, helped, "", f"limit {first} is used up", {"quota": first})


def namespace_full(state: LiveCluster) -> QueueFinding | None:
    """GPUs of workloads without pods, in a namespace whose ResourceQuota is used up."""
    free = sum(free_gpus(state).values())
    asked = {
        quota: [one for one in state.templates if _refused(quota, one)]
        for quota in state.namespace_quotas
    }
    full = {quota: templates for quota, templates in asked.items() if templates}
    lost = min(free, sum(_gpus(one) for templates in full.values() for one in templates))
    if not lost:
        return None
    first, templates = max(full.items(), key=lambda one: sum(_gpus(each) for each in one[1]))
    namespace, _, name = first.name.rpartition("/")
    raised = first.used + sum(one.replicas * _counted(first, one) for one in templates)
    return found(
        CAUSE, way="namespace", lost_gpus=lost, counted="asked for by workloads whose pods a"
        " namespace's quota refuses, and free", confidence=0.8,
        summary=f"ResourceQuota {first.name} of {_amount(first, first.hard)} is used up"
        f" ({_amount(first, first.used)}), while {several(free, 'GPU')} are free:"
        f" {templates[0].workload} has no pods, since they are refused",
        evidence={"quota": first.hard, "used": first.used, "free_gpus": free,
                  "workloads_without_pods": sum(len(one) for one in full.values())},
        where=[one.workload for one in templates],
        filled={"name": name, "namespace": namespace, "resource": first.resource,
                "amount": f"{raised:.0f}"},
    )  # fmt: skip


def _held_back(
    state: LiveCluster, helped: Sequence[LivePod], way: str, why: str, filled: dict[str, str]
) -> QueueFinding:
    lost = sum(pod.num_gpus for pod in helped)
    return found(
        CAUSE, way=way, lost_gpus=lost, counted=COUNTED, confidence=0.85,
        summary=f"{why}, while {several(lost, 'GPU')} are free for {several(len(helped), 'pod')}"
        " that it holds back",
        evidence={"pods_held_back": len(state.held_back), "pods_that_would_start": len(helped)},
        where=[pod.name for pod in helped], filled=filled,
    )  # fmt: skip


def _queue(pod: LivePod) -> str:
    """The LocalQueue that a pod names, after its namespace."""
    return f"{pod.name.partition('/')[0]}/{pod.quota}"


def _refused(quota: NamespaceQuota, one: AskedTemplate) -> bool:
    """Whether a workload is in the namespace of a quota that its pods are too much for."""
    namespace = one.workload.partition(" ")[2].partition("/")[0]
    within = namespace == quota.name.partition("/")[0]
    left = quota.hard - quota.used
    return within and not one.suspended and _counted(quota, one) > left


def _counted(quota: NamespaceQuota, one: AskedTemplate) -> float:
    """What a pod of a template counts for in a quota."""
    return _each(one) if quota.gpus else one.of_a_pod.get(quota.resource, 0.0)


def _amount(quota: NamespaceQuota, number: float) -> str:
    if quota.gpus:
        return several(int(number), "GPU")
    if "memory" in quota.resource or "storage" in quota.resource:
        return f"{number / 2**30:.0f} GiB of {quota.resource}"
    return f"{number:g} {quota.resource}"


def _each(one: AskedTemplate) -> int:
    return int(parse_quantity(one.limits or one.requests) or 0)


def _gpus(one: AskedTemplate) -> int:
    return one.replicas * _each(one)
