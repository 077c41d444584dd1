"""Nodes with free GPUs take no pods, while pods wait that they could run."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.queue.doctor.cluster_ahead import BeforeAndCured, ClusterAhead
from ridgeline.queue.doctor.room import starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, several
from ridgeline.records.queue_finding import QueueFinding


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of waiting pods that would start if every node took pods."""
    closed = [node for node in state.nodes if node.closed and node.num_gpus]
    if not closed:
        return None
    waiting = {pod.name: pod for pod in state.waiting if pod.num_gpus}
    now = set(starting_now(state))
    helped = [waiting[name] for name in starting_now(state, closed=True) if name not in now]
    if not helped:
        return None
    lost = sum(pod.num_gpus for pod in helped)
    return found(
        "closed-nodes",
        lost_gpus=lost,
        counted="asked for by waiting pods that would start if these nodes took pods",
        confidence=0.8,
        summary=f"{several(len(closed), 'node')} with"
        f" {several(sum(node.num_gpus for node in closed), 'GPU')} take no pods"
        f" ({closed[0].name}: {closed[0].closed}), while {several(len(helped), 'pod')} wait that"
        " would run there",
        evidence={
            "closed_nodes": len(closed),
            "closed_gpus": sum(node.num_gpus for node in closed),
            "pods_that_would_start": len(helped),
        },
        where=[node.name for node in closed],
        filled={"node": closed[0].name},
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """The nodes take pods."""
    opened = [replace(one, closed="") if one.name in finding.where else one for one in state.nodes]
    return ClusterAhead(state=state), ClusterAhead(state=replace(state, nodes=tuple(opened)))
