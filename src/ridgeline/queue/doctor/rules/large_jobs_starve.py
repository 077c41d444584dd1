"""Younger, smaller pods take what a large one waits for, again and again."""

from __future__ import annotations

from dataclasses import replace

from ridgeline import quantity
from ridgeline.queue.doctor.cluster_ahead import BeforeAndCured, ClusterAhead
from ridgeline.queue.doctor.room import starting_now, starting_packed
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, LivePod, several
from ridgeline.records.queue_finding import QueueFinding

PATIENCE_SECONDS = 1800.0


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs that large pods wait for and younger ones took."""
    most = max((node.num_gpus for node in state.nodes), default=0)
    cured = set(starting_packed(state)) | set(starting_now(state, pure_gpus=True))
    large = [
        pod for pod in state.waiting
        if most > 1 and pod.num_gpus > most // 2 and pod.name not in cured
        and pod.created_seconds is not None and state.age_seconds(pod) >= PATIENCE_SECONDS
    ]  # fmt: skip
    taken = {pod.name: _overtaking(state, pod) for pod in large}
    starved = [pod for pod in large if sum(one.num_gpus for one in taken[pod.name]) >= pod.num_gpus]
    if not starved:
        return None
    passed = {one.name: one for pod in starved for one in taken[pod.name]}
    gpus = sum(one.num_gpus for one in passed.values())
    lost = min(sum(pod.num_gpus for pod in starved), gpus)
    oldest = max(starved, key=state.age_seconds)
    return found(
        "large-jobs-starve",
        lost_gpus=lost,
        counted="that large pods wait for and younger, smaller ones took in the meantime",
        confidence=0.85,
        summary=f"{oldest.name} has waited {quantity.seconds(state.age_seconds(oldest))} for"
        f" {oldest.num_gpus} GPUs of one node, while {several(len(passed), 'younger pod')} took"
        f" {gpus}",
        evidence={
            "starved_pods": len(starved),
            "longest_wait_seconds": state.age_seconds(oldest),
            "younger_pods_started": len(passed),
            "gpus_of_younger_pods": gpus,
        },
        where=[pod.name for pod in starved],
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """Nobody overtakes the oldest, while younger pods go on coming at the pace they came at."""
    starved = [pod for pod in state.pods if pod.name in finding.where]
    passed = {one.name: one for pod in starved for one in _overtaking(state, pod)}
    window = max(state.age_seconds(pod) for pod in starved)
    coming = tuple(replace(one, node="", started_seconds=None) for one in passed.values())
    as_it_is = ClusterAhead(state=state, coming=coming, coming_seconds=window)
    return as_it_is, replace(as_it_is, policy="fifo")


def _overtaking(state: LiveCluster, large: LivePod) -> list[LivePod]:
    """Smaller pods that came after a large one and run where it could."""
    assert large.created_seconds is not None
    fitting = {node.name for node in state.nodes
               if node.num_gpus >= large.num_gpus and large.model in ("", node.model)
               and not large.constraints.keeps_off(node.labels, node.taints)}  # fmt: skip
    return [
        pod for pod in state.running
        if 0 < pod.num_gpus < large.num_gpus and pod.node in fitting
        and pod.created_seconds is not None and pod.created_seconds > large.created_seconds
    ]  # fmt: skip
