"""Pods wait for nodes that an autoscaler says it will not add."""

from __future__ import annotations

from collections import Counter

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster
from ridgeline.records.queue_finding import QueueFinding

NOT_PLAYED = "which nodes would be added, and how soon, is not in the state"


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs that waiting pods ask for, for which there is no room and no node comes."""
    told = [pod for pod in state.waiting if pod.says("autoscaler")]
    now = set(starting_now(state)) if told else set()
    stuck = [pod for pod in told if pod.name not in now]
    if not stuck:
        return None
    reasons = Counter(pod.says("autoscaler") for pod in stuck)
    lost, reason = sum(pod.num_gpus for pod in stuck), reasons.most_common(1)[0][0]
    return found(
        "not-scaled-up",
        lost_gpus=lost,
        counted="asked for by waiting pods that no node has room for, and for which none is added",
        confidence=0.6,
        summary=f"{several(len(stuck), 'pod')} of {several(lost, 'GPU')} wait for nodes that the"
        f" autoscaler does not add: {reason}",
        evidence={"pods": len(stuck), **reasons},
        where=[pod.name for pod in stuck],
        filled={"pod": stuck[0].name.rpartition("/")[2],
                "namespace": stuck[0].name.partition("/")[0]},
    )  # fmt: skip
