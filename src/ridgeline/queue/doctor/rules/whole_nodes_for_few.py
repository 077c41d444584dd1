"""Jobs take whole nodes for themselves and use only some of their GPUs."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, LiveNode, LivePod
from ridgeline.records.queue_finding import QueueFinding


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of waiting jobs that would start if others left what they do not use of their nodes."""
    nodes = {node.name: node for node in state.nodes}
    wasteful = [
        pod for pod in state.running
        if pod.exclusive and pod.node in nodes and pod.num_gpus < nodes[pod.node].num_gpus
    ]  # fmt: skip
    waiting = {pod.name: pod for pod in state.waiting if pod.num_gpus}
    if not wasteful or not waiting:
        return None
    now = set(starting_now(state))
    helped = [waiting[name] for name in starting_now(shared(state)) if name not in now]
    if not helped:
        return None
    lost = sum(pod.num_gpus for pod in helped)
    left = sum(nodes[pod.node].num_gpus - pod.num_gpus for pod in wasteful)
    first = min(wasteful, key=lambda pod: (pod.num_gpus, pod.name))
    return found(
        "whole-nodes-for-few",
        lost_gpus=lost,
        counted="asked for by waiting jobs that would start on GPUs that exclusive jobs leave",
        confidence=0.95,
        summary=f"{several(len(wasteful), 'exclusive job')} leave {several(left, 'GPU')} of their"
        f" nodes unused: {first.name} has {first.node} for itself and"
        f" {several(first.num_gpus, 'GPU')} of it; {several(len(helped), 'job')} would start there",
        evidence={"exclusive_jobs": len(wasteful), "gpus_left": left,
                  "jobs_that_would_start": len(helped)},
        where=[pod.name for pod in wasteful],
    )  # fmt: skip


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """They have their GPUs' share of cores and memory, and others the rest."""
    return ClusterAhead(state=state), ClusterAhead(state=shared(state))


def shared(state: LiveCluster) -> LiveCluster:
    """The cluster in which an exclusive job takes only its GPUs' share of its nodes."""
    nodes = {node.name: node for node in state.nodes}
    pods = [
        _sharing(pod, nodes[pod.node]) if pod.exclusive and pod.node in nodes else pod
        for pod in state.pods
    ]
    return replace(state, pods=tuple(pods))


def _sharing(pod: LivePod, node: LiveNode) -> LivePod:
    share = pod.num_gpus / node.num_gpus if node.num_gpus else 1.0
    return replace(
        pod,
        cpu_milli=min(pod.cpu_milli, int(node.cpu_milli * share)),
        memory_bytes=min(pod.memory_bytes, int(node.memory_bytes * share)),
    )
