"""Free GPUs are withheld from pods for a reason that the cluster itself gives."""

from __future__ import annotations

from collections import Counter

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, starting_if_let, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import GATE, LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding

GATE_SECONDS = 86400.0
"""Data is staged and budgets are granted within a day."""


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of pods that would start but for the reason that is most costly."""
    held = [
        pod for pod in state.held_back if pod.told is not None and not _gated_lately(state, pod)
    ]
    asking = [pod for pod in state.waiting if pod.told is not None]
    now = set(starting_now(state)) if asking else set()  # by all that is counted
    by_way = {
        way: [pod for pod in asking if pod.name in now and _way(pod) == way]
        + starting_if_let(state, [pod for pod in held if _way(pod) == way])
        for way in {_way(pod) for pod in (*held, *asking)}
    }
    way, helped = max(
        by_way.items(),
        key=lambda one: (sum(pod.num_gpus for pod in one[1]), one[0]),
        default=("", []),
    )
    if not helped:
        return None
    lost = sum(pod.num_gpus for pod in helped)
    said = Counter(pod.told.said for pod in helped if pod.told)
    first, name = helped[0], helped[0].name.rpartition("/")[2]
    return found(
        "held-as-told",
        way=way,
        lost_gpus=lost,
        counted="asked for by pods that are held back for this reason, and free",
        confidence=0.9,
        summary=f"{said.most_common(1)[0][0]}, while {several(lost, 'GPU')} are free for"
        f" {several(len(helped), 'pod')} that this holds back",
        evidence={"pods_held_back": len(held) + len(asking),
                  "pods_that_would_start": len(helped), **said},
        where=[pod.name for pod in helped],
        filled={"pod": name, "job": first.name.partition("/")[0], "workload": first.workload,
                "namespace": first.name.partition("/")[0]},
    )  # fmt: skip


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """The pods are let in; as it is they never start."""
    let_in = set(finding.where)
    if not any(pod.gated for pod in state.pods if pod.name in let_in):
        return "by all that is simulated the pods would start as it is"
    after = state.with_pods(let_in, gated=False)
    return ClusterAhead(state=state), ClusterAhead(state=after)


def _gated_lately(state: LiveCluster, pod: LivePod) -> bool:
    """Whether a pod waits behind a gate that whoever made it may yet take away."""
    return _way(pod) == GATE and state.age_seconds(pod) < GATE_SECONDS


def _way(pod: LivePod) -> str:
    return pod.told.way if pod.told else ""
