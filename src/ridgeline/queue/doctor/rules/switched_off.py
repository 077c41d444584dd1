"""Pods hold GPUs that their own settings hide from the program in them."""

from __future__ import annotations

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster
from ridgeline.records.queue_finding import QueueFinding


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs that are held by pods whose programs can see none."""
    blind = [pod for pod in state.running if pod.switched_off and pod.num_gpus]
    if not blind:
        return None
    lost = sum(pod.num_gpus for pod in blind)
    first = max(blind, key=lambda pod: (pod.num_gpus, pod.name))
    return found(
        "switched-off",
        lost_gpus=lost,
        counted="held by pods whose programs are told to use none",
        confidence=0.9,
        summary=f"{several(len(blind), 'pod')} hold {several(lost, 'GPU')} that their own settings"
        f" hide from them: {first.name} has {first.switched_off}",
        evidence={"pods": len(blind)},
        where=[pod.name for pod in blind],
        filled={"setting": first.switched_off, "pod": first.name.rpartition("/")[2]},
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """They ask for no GPUs, and others have them."""
    blind = frozenset(finding.where)
    after = state.with_pods(blind, num_gpus=0)
    return ClusterAhead(state=state, idle=blind), ClusterAhead(state=after)
