"""Pods wait beside free GPUs for a reason that nothing here counts; the scheduler's words tell."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.quantity import several
from ridgeline.queue.doctor.room import starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import KUBERNETES, LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding

PATIENCE_SECONDS = 1800.0
"""kube-scheduler looks at every pod again within five minutes."""

NOT_PLAYED = "by all that is simulated the pods would start as it is"


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of pods that would start by all that is counted, and have not for long."""
    if state.scheduler != KUBERNETES or state.now_seconds is None or state.capped_queues:
        return None  # Slurm keeps nodes free for whom it is their turn, queues have their own rules
    long = {pod.name: pod for pod in state.waiting
            if state.age_seconds(pod) >= PATIENCE_SECONDS and not _explained(pod)}  # fmt: skip
    helped = [long[name] for name in starting_now(state) if name in long] if long else []
    if not helped:
        return None
    lost = sum(pod.num_gpus for pod in helped)
    first = max(helped, key=state.age_seconds)
    sentence = first.says("scheduler")
    says = f"its scheduler says: {sentence}" if sentence else "its scheduler says nothing"
    return found(
        "unexplained-wait",
        lost_gpus=lost,
        counted="asked for by pods that would start by GPUs, cores, memory, taints and labels",
        confidence=0.4,
        summary=f"{several(len(helped), 'pod')} of {several(lost, 'GPU')} have room by all that is"
        f" counted here, and wait: {first.name} for {quantity.seconds(state.age_seconds(first))};"
        f" {says}",
        evidence={"pods": len(helped)},
        where=[pod.name for pod in helped],
        filled={"pod": first.name.rpartition("/")[2], "namespace": first.name.partition("/")[0]},
    )


def _explained(pod: LivePod) -> bool:
    """Whether another rule is to say why a pod waits, or its group or queue may hold it."""
    told = pod.told or pod.told_of.keys() - {"scheduler", "restarts"}
    return pod.gang or bool(told or pod.quota or pod.group or pod.host_ports)
