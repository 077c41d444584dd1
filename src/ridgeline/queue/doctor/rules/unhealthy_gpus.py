"""Nodes have GPUs that their device plugin gives to no pod."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.quantity import several
from ridgeline.queue.doctor.cluster_ahead import BeforeAndCured, ClusterAhead
from ridgeline.queue.doctor.room import starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster
from ridgeline.records.queue_finding import QueueFinding


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs that are counted and not given away, or those of pods that would start with them."""
    broken = [node for node in state.nodes if node.broken_gpus]
    if not broken:
        return None
    waiting = {pod.name: pod for pod in state.waiting if pod.num_gpus}
    now = set(starting_now(state)) if waiting else set()
    with_them = starting_now(state, healthy=True) if waiting else []
    helped = [waiting[name] for name in with_them if name not in now]
    gone = sum(node.broken_gpus for node in broken)
    asked = sum(pod.num_gpus for pod in helped)
    first = max(broken, key=lambda node: node.broken_gpus)
    more = f"; {several(len(helped), 'pod')} of {several(asked, 'GPU')} would start with them"
    return found(
        "unhealthy-gpus",
        lost_gpus=max(gone, asked),
        counted="that no pod is given, or asked for by waiting pods that would start with them",
        confidence=0.95,
        summary=f"{several(gone, 'GPU')} of {several(len(broken), 'node')} are counted and given to"
        f" no pod: {first.name} has {first.num_gpus + first.broken_gpus} and offers"
        f" {first.num_gpus}{more if helped else ''}",
        evidence={"gpus": gone, "nodes": len(broken), "pods_that_would_start": len(helped)},
        where=[node.name for node in broken],
        filled={"node": first.name},
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """The GPUs are given to pods again."""
    del finding
    mended = [replace(one, num_gpus=one.num_gpus + one.broken_gpus) for one in state.nodes]
    return ClusterAhead(state=state), ClusterAhead(state=replace(state, nodes=tuple(mended)))
