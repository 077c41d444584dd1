"""Nodes have GPUs that nobody is given, or that fail, by the device plugin or the node itself."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, LiveNode
from ridgeline.records.queue_finding import QueueFinding


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs that are not given away or do no work, or those of pods that would start with them."""
    gone_of = {node.name: _gone(state, node) for node in state.nodes}
    broken = [node for node in state.nodes if gone_of[node.name]]
    if not broken:
        return None
    waiting = {pod.name: pod for pod in state.waiting if pod.num_gpus}
    now = set(starting_now(state)) if waiting else set()
    with_them = starting_now(state, healthy=True) if waiting else []
    helped = [waiting[name] for name in with_them if name not in now]
    gone = sum(gone_of.values())
    asked = sum(pod.num_gpus for pod in helped)
    first = max(broken, key=lambda node: gone_of[node.name])
    fault = f" ({first.fault})" if first.fault else ""
    more = f"; {several(len(helped), 'pod')} of {several(asked, 'GPU')} would start with them"
    return found(
        "unhealthy-gpus",
        lost_gpus=max(gone, asked),
        counted="that no pod is given or can use, or asked for by waiting pods that would start"
        " with them",
        confidence=0.95,
        summary=f"{several(gone, 'GPU')} of {several(len(broken), 'node')} are counted and given to"
        f" no pod: {first.name} has {first.num_gpus + first.broken_gpus} and offers"
        f" {first.num_gpus}{fault}{more if helped else ''}"
        if first.broken_gpus
        else f"{several(gone, 'GPU')} of {several(len(broken), 'node')} do no work since they"
        f" fail: {first.name} says {first.fault}",
        evidence={"gpus": gone, "nodes": len(broken), "pods_that_would_start": len(helped)},
        where=[node.name for node in broken],
        filled={"node": first.name},
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """The GPUs are given to pods again."""
    if not any(node.broken_gpus for node in state.nodes if node.name in finding.where):
        return "what a fault takes from the pods of its node is not in the state"
    mended = [replace(one, num_gpus=one.num_gpus + one.broken_gpus) for one in state.nodes]
    return ClusterAhead(state=state), ClusterAhead(state=replace(state, nodes=tuple(mended)))


def _gone(state: LiveCluster, node: LiveNode) -> int:
    """GPUs of a node that do no work for their own fault.

    Of a node that tells of a fault at least one, and all that nobody has or that stalled pods hold.
    """
    if node.broken_gpus or not node.fault or node.closed or not node.num_gpus:
        return node.broken_gpus
    here = [pod for pod in state.running if pod.node == node.name]
    working = sum(pod.num_gpus for pod in here if not pod.stalled)
    return max(1, node.num_gpus - working)
