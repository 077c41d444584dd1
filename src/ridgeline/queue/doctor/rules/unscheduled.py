"""Pods wait that no scheduler has looked at, though GPUs are free."""

from __future__ import annotations

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster
from ridgeline.records.queue_finding import QueueFinding


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of pods that would start if the scheduler that they name were there."""
    waiting = {pod.name: pod for pod in state.waiting if pod.num_gpus and pod.says("unscheduled")}
    helped = [waiting[name] for name in starting_now(state) if name in waiting]
    if not helped:
        return None
    lost, first = sum(pod.num_gpus for pod in helped), helped[0]
    scheduler = first.says("unscheduled")
    return found(
        "unscheduled",
        lost_gpus=lost,
        counted="asked for by waiting pods for which GPUs are free, and that nobody places",
        confidence=0.85,
        summary=f"{several(len(helped), 'pod')} wait that no scheduler has looked at: {first.name}"
        f" names schedulerName {scheduler}",
        evidence={"pods": len(helped), "scheduler": scheduler},
        where=[pod.name for pod in helped],
        filled={"scheduler": scheduler},
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """Somebody places them; as it is nobody does."""
    held = state.with_pods(finding.where, gated=True)
    return ClusterAhead(state=held), ClusterAhead(state=state)
