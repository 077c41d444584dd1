"""A queue admits workloads by how many GPUs are left in all, wherever these are."""

from __future__ import annotations

from ridgeline.quantity import several
from ridgeline.queue.doctor.partial import partial_workloads
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, free_gpus
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster
from ridgeline.records.queue_finding import QueueFinding


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs held by admitted workloads of which a part found no node."""
    stuck = partial_workloads(state, quota=True)
    if not stuck:
        return None
    held = sum(one.held_gpus for one in stuck)
    free = free_gpus(state)
    first = stuck[0]
    return found(
        "quota-without-topology",
        lost_gpus=held,
        counted="held by workloads that a quota admitted and of which a part found no node",
        confidence=0.95,
        summary=f"queue {first.example.quota} admitted {several(len(stuck), 'workload')} by quota"
        f" alone: {first.said}, and no node has the {first.example.num_gpus} that each further pod"
        f" needs, though {sum(free.values())} are free on {several(len(free), 'node')}",
        evidence={
            "workloads_started_in_part": len(stuck),
            "held_gpus": held,
            "missing_gpus": sum(one.missing_gpus for one in stuck),
            "free_gpus": sum(free.values()),
            "most_free_gpus_of_a_node": max(free.values(), default=0),
        },
        where=[one.name for one in stuck],
        filled={"queue": first.example.quota},
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """Workloads start whole or not at all; those that started in part give back what they hold."""
    return ClusterAhead(state=state), ClusterAhead(state=state, together=True)
