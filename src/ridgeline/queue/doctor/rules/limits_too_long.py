"""Jobs state time limits far above what they take, so that nothing is filled in before a large one.

Backfill starts a job out of its turn only where its limit ends before the GPUs are wanted.
"""

from __future__ import annotations

from statistics import median

from ridgeline import quantity
from ridgeline.quantity import several
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import SLURM, LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding

TIMES_TOO_LONG = 4.0
"""How many times the usual run a limit may be before it says nothing of it."""
FEWEST_ENDED = 5


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of jobs for which there is room, that wait behind one for which there is none."""
    ran = [
        pod.ended_seconds - pod.started_seconds
        for pod in state.pods
        if pod.done and pod.ended_seconds is not None and pod.started_seconds is not None
    ]
    if state.scheduler != SLURM or len(ran) < FEWEST_ENDED:
        return None
    usual = median(ran)
    now = set(starting_now(state))
    behind = [pod for pod in state.waiting if pod.name in now and _overstates(pod, usual)]
    ahead = [pod for pod in state.waiting if pod.num_gpus and pod.name not in now]
    if not behind or not ahead:
        return None
    lost, limit = sum(pod.num_gpus for pod in behind), median(_limits(behind))
    return found(
        "limits-too-long",
        lost_gpus=lost,
        counted="free, and asked for by jobs whose time limits let backfill start none of them",
        confidence=0.8,
        summary=f"{several(len(behind), 'job')} of {several(lost, 'GPU')} wait beside free GPUs"
        f" with time limits of {quantity.seconds(limit)}, while jobs here run"
        f" {quantity.seconds(usual)} at the median: backfill starts nothing that may still run"
        f" when {ahead[0].workload} gets its nodes",
        evidence={"jobs": len(behind), "median_limit_seconds": limit,
                  "median_run_seconds": usual, "ended_runs": len(ran)},
        where=[pod.name for pod in behind],
    )  # fmt: skip


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """They start where there is room; as it is they wait for the large one."""
    held = state.with_pods(finding.where, gated=True)
    return ClusterAhead(state=held), ClusterAhead(state=state)


def _overstates(pod: LivePod, usual_seconds: float) -> bool:
    limit = pod.most_seconds
    return bool(pod.num_gpus) and limit is not None and limit > TIMES_TOO_LONG * usual_seconds


def _limits(pods: list[LivePod]) -> list[float]:
    return [pod.most_seconds for pod in pods if pod.most_seconds is not None]
