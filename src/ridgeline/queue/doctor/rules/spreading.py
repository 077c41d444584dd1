"""Pods are spread over nodes, so that what is free lies in pieces."""

from __future__ import annotations

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import (
    BeforeAndCured,
    ClusterAhead,
    free_gpus,
    starting_now,
    starting_packed,
)
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster
from ridgeline.records.queue_finding import QueueFinding


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of waiting pods that would run, had MostAllocated placed what runs."""
    waiting = {pod.name: pod for pod in state.waiting if pod.num_gpus}
    if not waiting:
        return None
    # What more CPU alone would start is for another rule.
    others = set(starting_now(state, pure_gpus=True)) | set(starting_now(state))
    # And so is what a workload lacks of which ranks run already.
    begun = {pod.workload for pod in state.running if pod.ranks}
    others |= {name for name, pod in waiting.items() if pod.ranks and pod.workload in begun}
    helped = [waiting[name] for name in starting_packed(state) if name not in others]
    if not helped:
        return None
    lost = sum(pod.num_gpus for pod in helped)
    free = free_gpus(state)
    largest = max(helped, key=lambda pod: pod.num_gpus)
    return found(
        "spreading",
        lost_gpus=lost,
        counted="asked for by waiting pods that would run, had MostAllocated placed those that run",
        confidence=0.9,
        summary=f"{sum(free.values())} GPUs are free, at most {max(free.values(), default=0)} on"
        f" one node: {several(len(helped), 'pod')} of up to {largest.num_gpus} GPUs would run had"
        " the others been packed",
        evidence={
            "free_gpus": sum(free.values()),
            "most_free_gpus_of_a_node": max(free.values(), default=0),
            "nodes_partly_used": _partly_used(state, free),
            "pods_that_would_start": len(helped),
        },
        where=[pod.name for pod in sorted(helped, key=lambda pod: -pod.num_gpus)],
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """What runs placed by MostAllocated, and what starts as well."""
    return ClusterAhead(state=state), ClusterAhead(
        state=state, placement="kube-most-allocated", placed_anew=True
    )


def _partly_used(state: LiveCluster, free: dict[str, int]) -> int:
    return sum(0 < free.get(node.name, 0) < node.num_gpus for node in state.nodes)
