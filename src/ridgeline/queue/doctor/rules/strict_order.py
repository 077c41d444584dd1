"""Slurm starts jobs strictly in order, and GPUs stand free behind one that does not fit."""

from __future__ import annotations

from ridgeline.quantity import several
from ridgeline.queue.doctor.cluster_ahead import BeforeAndCured, ClusterAhead
from ridgeline.queue.doctor.room import starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster
from ridgeline.records.queue_finding import QueueFinding

SCHEDULER, STRICT = "schedulertype", "sched/builtin"


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of waiting jobs that backfill would start."""
    if state.settings.get(SCHEDULER, "").casefold() != STRICT:
        return None
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
    del finding
    return ClusterAhead(state=state, policy="fifo"), ClusterAhead(state=state, policy="easy")
