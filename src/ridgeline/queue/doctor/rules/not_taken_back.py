"""Queues wait for what is theirs, or for a fair share, while others hold more than that.

Kueue takes lent quota back only where `reclaimWithinCohort` says so, which it does not by default,
and lets a queue of weight 0 borrow after all others. Volcano shares GPUs by weight (its plug-in
proportion), and takes nothing back from a queue with `reclaimable: false` or without the action
reclaim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ridgeline.quantity import several
from ridgeline.queue.doctor.quota_room import available, may_have, used
from ridgeline.queue.doctor.room import free_gpus
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import CappedQueue, GpuQuota, LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding

PATIENCE_SECONDS = 3600.0
"""What is taken back is there by then: an evicted job has saved its work and gone."""

NOT_PLAYED = "whom a queue would interrupt to give back what it borrowed is not in the state"


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of queues that wait for what others hold above their own, of the way that costs most."""
    ways = (_lent(state), _weightless(state), _shared_by_weight(state))
    return max((one for one in ways if one), key=lambda one: one.lost_gpus, default=None)


def _lent(state: LiveCluster) -> QueueFinding | None:
    """Pods within their queue's own quota, which a cohort has lent and is not to give back."""
    best: QueueFinding | None = None
    for quota, left in zip(state.quotas, available(state), strict=True):
        if not quota.cohort or quota.reclaims or quota.stopped or quota.inactive:
            continue
        own = quota.gpus - used(state, quota)
        entitled = _first_within(own, _patient(state, quota, left))
        over = _borrowers(state, quota)
        lost = min(sum(pod.num_gpus for pod in entitled), sum(over.values()))
        if not lost or (best and best.lost_gpus >= lost):
            continue
        name = quota.name.rpartition(" ")[2]
        best = _told(
            "", lost, entitled,
            f"{quota.name} has {several(quota.gpus, 'GPU')} of its own and uses"
            f" {used(state, quota)}, while {max(over, key=lambda one: over[one])} has borrowed"
            f" {several(sum(over.values()), 'GPU')}: its reclaimWithinCohort is Never",
            {"quota": quota.name, "name": name},
        )  # fmt: skip
    return best


def _weightless(state: LiveCluster) -> QueueFinding | None:
    """Pods of a queue of weight 0, which comes after all that borrow."""
    for quota, left in zip(state.quotas, available(state), strict=True):
        if quota.weight or not quota.cohort:
            continue
        waiting, over = _patient(state, quota, left), _borrowers(state, quota)
        lost = min(sum(pod.num_gpus for pod in waiting), sum(over.values()))
        if lost:
            return _told(
                "weight", lost, waiting,
                f"{quota.name} has the weight 0 in fair sharing, so that all others borrow first:"
                f" {max(over, key=lambda one: over[one])} has {several(sum(over.values()), 'GPU')}"
                " that are not its own",
                {"quota": quota.name, "name": quota.name.rpartition(" ")[2]},
            )  # fmt: skip
    return None


def _shared_by_weight(state: LiveCluster) -> QueueFinding | None:
    """Pods of a queue of Volcano below its share by weight, beside others above theirs."""
    queues = {name: one for name, one in state.capped_queues.items()
              if one.weight and one.parent in ("", "root")}  # fmt: skip
    held = Counter[str]()
    for pod in state.running:
        held[pod.queue] += pod.num_gpus
    waiting = {
        name: [pod for pod in state.waiting
               if pod.queue == name and state.age_seconds(pod) >= PATIENCE_SECONDS]
        for name in queues
    }  # fmt: skip
    demand = {name: held[name] + sum(pod.num_gpus for pod in waiting[name]) for name in queues}
    share = _by_weight(sum(node.num_gpus for node in state.nodes), queues, demand)
    over = {name: held[name] - share[name] for name in queues if held[name] > share[name]}
    free = sum(free_gpus(state).values())
    if not over:
        return None
    kept = max(over, key=lambda name: over[name])
    for name in sorted(queues, key=lambda name: held[name] - share[name]):
        entitled = _first_within(share[name] - held[name], waiting[name])
        lost = min(sum(pod.num_gpus for pod in entitled), sum(over.values()))
        if lost >= 1 and free < min(pod.num_gpus for pod in entitled):
            why = " and is not reclaimable" if not queues[kept].reclaimable else ""
            return _told(
                "volcano", int(lost), entitled,
                f"Queue {name} has {held[name]} of the {share[name]:.0f} GPUs that are its share by"
                f" weight, while Queue {kept} has {held[kept]} of {share[kept]:.0f}{why}",
                {"quota": f"Queue {kept}", "name": kept},
            )  # fmt: skip
    return None


def _told(
    way: str, lost: int, pods: Sequence[LivePod], why: str, filled: dict[str, str]
) -> QueueFinding:
    return found(
        "not-taken-back", way=way, lost_gpus=lost, confidence=0.6,
        counted="asked for by pods whose queue has less than its own, and held by others above"
        " theirs",
        summary=f"{why}; {several(len(pods), 'pod')} of it"
        f" {'waits' if len(pods) == 1 else 'wait'} for an hour and longer",
        evidence={"pods": len(pods), "asked_gpus": sum(pod.num_gpus for pod in pods)},
        where=[pod.name for pod in pods], filled=filled,
    )  # fmt: skip


def _patient(state: LiveCluster, quota: GpuQuota, left: float) -> list[LivePod]:
    """Pods that have long been held back by a quota with nothing left for them."""
    return [pod for pod in state.held_back
            if pod.num_gpus > left and may_have(state, quota, pod)
            and state.age_seconds(pod) >= PATIENCE_SECONDS]  # fmt: skip


def _borrowers(state: LiveCluster, quota: GpuQuota) -> dict[str, int]:
    """Other queues of a cohort with what they use above their own quota of a flavor."""
    others = [
        one
        for one in state.quotas
        if one.cohort == quota.cohort and one is not quota and one.flavor == quota.flavor
    ]
    return {one.name: more for one in others if (more := used(state, one) - one.gpus) > 0}


def _first_within(gpus: float, pods: Sequence[LivePod]) -> list[LivePod]:
    """The oldest pods that so many GPUs are enough for."""
    chosen = []
    for pod in sorted(pods, key=lambda one: (one.created_seconds or 0.0, one.name)):
        if pod.num_gpus <= gpus:
            chosen.append(pod)
            gpus -= pod.num_gpus
    return chosen


def _by_weight(
    gpus: int, queues: dict[str, CappedQueue], demand: dict[str, int]
) -> dict[str, float]:
    """Shares in proportion to weights, of which nobody gets more than it asks for."""
    share = dict.fromkeys(queues, 0.0)
    left, hungry = float(gpus), {name for name in queues if demand[name]}
    while hungry and left > 0:
        total = sum(queues[name].weight for name in hungry)
        sated = {name for name in hungry
                 if demand[name] - share[name] <= left * queues[name].weight / total}  # fmt: skip
        if not sated:
            for name in hungry:
                share[name] += left * queues[name].weight / total
            break
        left -= sum(demand[name] - share[name] for name in sated)
        share |= {name: float(demand[name]) for name in sated}
        hungry -= sated
    return share
