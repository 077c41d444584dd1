"""Pods ask for several replicas of shared GPUs, as if each were a GPU.

A pod that has several may have them all of one GPU, and has in no case more of it by that.
Source: NVIDIA, "Time-Slicing GPUs in Kubernetes" (failRequestsGreaterThanOne).
"""

from __future__ import annotations

from ridgeline.quantity import several
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster
from ridgeline.records.queue_finding import QueueFinding

NOT_PLAYED = "which GPUs the replicas of a pod are of, and how fast it runs, is not in the state"


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs under replicas of which one pod holds several."""
    replicas = {node.name: node.replicas for node in state.nodes if node.replicas > 1}
    # HAMi gives a pod each of its shares of another GPU.
    by_hami = {node.name for node in state.nodes if "nvidia.com/gpumem" in node.others}
    pods = [
        pod for pod in state.running
        if pod.node in replicas and pod.node not in by_hami and pod.num_gpus > 1
    ]  # fmt: skip
    if not pods:
        return None
    lost = sum(pod.num_gpus / replicas[pod.node] for pod in pods)
    pods.sort(key=lambda pod: (-pod.num_gpus, pod.name))
    first = pods[0]
    return found(
        "replicas-as-gpus",
        lost_gpus=lost,
        counted="under replicas that pods hold several of, and that are no more than one GPU each",
        confidence=0.7,
        summary=f"{several(len(pods), 'pod')} ask for several replicas of shared GPUs as if they"
        f" were GPUs: {first.name} for {first.num_gpus}, where each GPU counts as"
        f" {replicas[first.node]}",
        evidence={
            "pods": len(pods),
            "replicas_asked": sum(pod.num_gpus for pod in pods),
            "gpus_beneath": lost,
        },
        where=[pod.name for pod in pods],
    )
