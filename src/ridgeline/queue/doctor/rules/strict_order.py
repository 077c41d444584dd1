"""Jobs start strictly in order, and GPUs stand free behind one that does not fit."""

from __future__ import annotations

from collections import defaultdict

from ridgeline.quantity import several
from ridgeline.queue.doctor.lasting import unit_of
from ridgeline.queue.doctor.quota_room import available, counts
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, starting_if_let, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import SLURM, GpuQuota, LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding

SCHEDULER, STRICT = "schedulertype", "sched/builtin"


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of waiting jobs that backfill would start."""
    if state.settings.get(SCHEDULER, "").casefold() != STRICT:
        return _of_kueue(state)
    waiting = {pod.name: pod for pod in state.waiting if pod.num_gpus}
    helped = [waiting[name] for name in starting_now(state)]
    if not helped or len(helped) == len(waiting):
        return None
    lost = sum(pod.num_gpus for pod in helped)
    ahead = max((pod for name, pod in waiting.items() if pod not in helped),
                key=lambda pod: (pod.num_gpus, pod.name))  # fmt: skip
    return found(
        "strict-order",
        lost_gpus=lost,
        counted="asked for by waiting jobs that fit into what is free, behind one that does not",
        confidence=0.95,
        summary=f"slurm.conf has SchedulerType={STRICT}, which starts jobs strictly in order:"
        f" {several(lost, 'GPU')} are free for {several(len(helped), 'pod')} behind"
        f" {ahead.workload} and what else does not fit",
        evidence={"pods_that_would_start": len(helped), "pods_waiting": len(waiting)},
        where=[pod.name for pod in helped],
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """Jobs that delay none ahead of them start behind it."""
    if state.scheduler != SLURM:
        after = state.with_pods(finding.where, gated=False)
        return ClusterAhead(state=state), ClusterAhead(state=after)
    return ClusterAhead(state=state, policy="fifo"), ClusterAhead(state=state, policy="easy")


def _of_kueue(state: LiveCluster) -> QueueFinding | None:
    """GPUs of workloads that a strict queue's quota has room for, behind one it has none for."""
    by_queue = {
        quota.name: _behind(state, quota, left)
        for quota, left in zip(state.quotas, available(state), strict=True)
        if quota.strict
    }
    name, (head, helped) = max(
        by_queue.items(),
        key=lambda one: sum(pod.num_gpus for pod in one[1][1]),
        default=("", ([], [])),
    )
    if not helped:
        return None
    lost = sum(pod.num_gpus for pod in helped)
    return found(
        "strict-order",
        way="kueue",
        lost_gpus=lost,
        counted="asked for by workloads that fit into quota and nodes, behind one that does not",
        confidence=0.9,
        summary=f"{name} admits strictly in order (StrictFIFO): {head[0].workload} of"
        f" {several(sum(pod.num_gpus for pod in head), 'GPU')} does not fit and keeps out"
        f" {several(len(helped), 'pod')} of {several(lost, 'GPU')} that would start",
        evidence={"pods_that_would_start": len(helped), "head_gpus": sum(p.num_gpus for p in head)},
        where=[pod.name for pod in helped],
        filled={"name": name.rpartition(" ")[2]},
    )


def _behind(
    state: LiveCluster, quota: GpuQuota, left: float
) -> tuple[list[LivePod], list[LivePod]]:
    """The workload that a queue's quota has no room for, and pods of those behind that fit."""
    units: dict[str, list[LivePod]] = defaultdict(list)
    held = [pod for pod in state.held_back if counts(quota, pod) and pod.told is None]
    for pod in sorted(held, key=lambda one: (-one.priority, one.created_seconds or 0.0, one.name)):
        units[unit_of(pod)].append(pod)
    head: list[LivePod] = []
    fitting: list[LivePod] = []
    for pods in units.values():
        asked = sum(pod.num_gpus for pod in pods)
        if not head and asked > left:
            head = pods
        elif head and asked <= left:
            left -= asked
            fitting += pods
    return head, starting_if_let(state, fitting) if fitting else []
