"""Ranks of one workload start one by one, and those that run wait for the others."""

from __future__ import annotations

from ridgeline.quantity import several
from ridgeline.queue.doctor.partial import deadlock_said, partial_workloads
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, free_gpus
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster
from ridgeline.records.queue_finding import QueueFinding


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs that ranks hold whose workload cannot compute."""
    stuck = partial_workloads(state, quota=False)
    if not stuck:
        return None
    held = sum(one.held_gpus for one in stuck)
    deadlock = deadlock_said(stuck, sum(free_gpus(state).values()))
    first = stuck[0]
    return found(
        "no-gang",
        lost_gpus=held,
        counted="held by ranks of workloads of which other ranks have no node",
        confidence=0.95 if deadlock else 0.8,
        summary=f"{several(held, 'GPU')} wait inside of {several(len(stuck), 'workload')} that"
        f" started in part: {deadlock or first.said}",
        evidence={
            "workloads_started_in_part": len(stuck),
            "held_gpus": held,
            "missing_gpus": sum(one.missing_gpus for one in stuck),
            "deadlock": "yes" if deadlock else "not by two of them alone",
        },
        where=[one.name for one in stuck],
        filled={
            "name": first.name.rpartition("/")[2],
            "namespace": first.example.name.partition("/")[0],
            "pods": str(first.pods),
        },
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """Workloads start whole or not at all; those that started in part give back what they hold."""
    return ClusterAhead(state=state), ClusterAhead(state=state, together=True)
