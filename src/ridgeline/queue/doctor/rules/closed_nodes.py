"""Nodes with free GPUs take no pods, while pods wait that they could run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, LiveNode
from ridgeline.queue.doctor.tainted_nodes import TAINT
from ridgeline.records.queue_finding import QueueFinding

COMING_UP_SECONDS = 600.0
"""A node that is not ready for less than this may just have been made, or been started anew."""


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of waiting pods that would start if every node took pods."""
    closed = [node for node in state.nodes if node.num_gpus and _lastingly(state, node)]
    if not closed:
        return None
    waiting = {pod.name: pod for pod in state.waiting if pod.num_gpus}
    now = set(starting_now(state))
    opened = starting_now(_without_lost(state), closed=True)
    helped = [waiting[name] for name in opened if name not in now]
    if not helped:
        return None
    lost = sum(pod.num_gpus for pod in helped)
    ways = Counter(_way(node) for node in closed)
    first = max(closed, key=lambda node: (ways[_way(node)], node.num_gpus))
    return found(
        "closed-nodes",
        lost_gpus=lost,
        counted="asked for by waiting pods that would start if these nodes took pods",
        confidence=0.8,
        summary=f"{several(len(closed), 'node')} with"
        f" {several(sum(node.num_gpus for node in closed), 'GPU')} take no pods"
        f" ({first.name}: {first.closed}), while {several(len(helped), 'pod')} wait that"
        " would run there",
        evidence={
            "closed_nodes": len(closed),
            "closed_gpus": sum(node.num_gpus for node in closed),
            "pods_that_would_start": len(helped),
        },
        where=[first.name, *(node.name for node in closed if node is not first)],
        way=_way(first),
        filled={"node": first.name, "taint": first.closed.removeprefix(TAINT).partition(",")[0]},
    )  # fmt: skip


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """The nodes take pods."""
    opened = [replace(one, closed="") if one.name in finding.where else one for one in state.nodes]
    after = replace(_without_lost(state), nodes=tuple(opened))
    return ClusterAhead(state=state), ClusterAhead(state=after)


def _way(node: LiveNode) -> str:
    return node.closed_way or ("tainted" if node.closed.startswith(TAINT) else "")


def _lastingly(state: LiveCluster, node: LiveNode) -> bool:
    """Whether a node is closed, and not only since a moment ago."""
    if node.closed_seconds is None or state.now_seconds is None:
        return bool(node.closed)
    return bool(node.closed) and state.now_seconds - node.closed_seconds >= COMING_UP_SECONDS


def _without_lost(state: LiveCluster) -> LiveCluster:
    """The cluster without deleted pods of closed nodes, which go once their node is heard of."""
    closed = {node.name for node in state.nodes if node.closed}
    left = [pod for pod in state.pods if pod.deleted_seconds is None or pod.node not in closed]
    return replace(state, pods=tuple(left))
