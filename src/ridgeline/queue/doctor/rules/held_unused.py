"""Pods hold GPUs that they do not use by what their own objects say."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.quantity import several
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.rules.idle_gpus import IDLE_SHARE
from ridgeline.queue.doctor.state import (
    DEFAULT,
    INIT,
    NOTEBOOK,
    PLACEHOLDER,
    SLEEPING,
    LiveCluster,
    LivePod,
)
from ridgeline.records.queue_finding import QueueFinding

PATIENCE_SECONDS = {PLACEHOLDER: 900.0, DEFAULT: 900.0, INIT: 900.0, NOTEBOOK: 86400.0,
                    SLEEPING: 86400.0}  # fmt: skip
"""YuniKorn's placeholders have a quarter of an hour to be replaced, Kubeflow's notebooks a day."""
CONFIDENCE = {NOTEBOOK: 0.7, SLEEPING: 0.5}


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs that are held and not used, of the way that costs most."""
    unused = [pod for pod in state.running if pod.unused and _for_long(state, pod)
              and state.used_share.get(pod.name, 0.0) < IDLE_SHARE]  # fmt: skip
    by_way = {
        way: [pod for pod in unused if _way(pod) == way] for way in {_way(pod) for pod in unused}
    }
    way, held, lost = max(
        ((way, pods, _lost(state, way, pods)) for way, pods in by_way.items()),
        key=lambda one: (one[2], one[0]),
        default=("", [], 0),
    )
    if not lost:
        return None
    first = max(held, key=lambda pod: (_gpus(pod), pod.name))
    assert first.unused is not None
    return found(
        "held-unused",
        way=way,
        lost_gpus=lost,
        counted="held by pods that do not use them by their own account"
        + (", up to what waiting pods would start with" if way in (PLACEHOLDER, SLEEPING) else ""),
        confidence=CONFIDENCE.get(way, 0.85),
        summary=f"{several(len(held), 'pod')} {'hold' if len(held) > 1 else 'holds'}"
        f" {several(sum(map(_gpus, held)), 'GPU')} for nothing: {first.name} {first.unused.said}",
        evidence={"pods": len(held), "held_gpus": sum(map(_gpus, held))},
        where=[pod.name for pod in held],
        filled={"pod": first.name.rpartition("/")[2], "namespace": first.name.partition("/")[0],
                "workload": first.workload},
    )  # fmt: skip


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """They hold no more than they use."""
    names = frozenset(finding.where)
    return ClusterAhead(state=state, idle=names), ClusterAhead(state=_without(state, names))


def _without(state: LiveCluster, names: frozenset[str]) -> LiveCluster:
    pods = (
        replace(pod, num_gpus=pod.num_gpus - _gpus(pod)) if pod.name in names else pod
        for pod in state.pods
        if not (pod.name in names and _way(pod) in (PLACEHOLDER, SLEEPING))
    )
    return replace(state, pods=tuple(pods))


def _lost(state: LiveCluster, way: str, held: list[LivePod]) -> int:
    """What they hold; of room that is kept on purpose, what others would start with by now."""
    gpus = sum(map(_gpus, held))
    if way not in (PLACEHOLDER, SLEEPING):
        return gpus
    highest = max(pod.priority for pod in held)
    waiting = {pod.name: pod.num_gpus for pod in state.waiting
               if not (pod.may_preempt and pod.priority > highest)}  # fmt: skip
    now = set(starting_now(state))
    after = starting_now(_without(state, frozenset(pod.name for pod in held)))
    return min(gpus, sum(waiting.get(name, 0) for name in after if name not in now))


def _for_long(state: LiveCluster, pod: LivePod) -> bool:
    assert pod.unused is not None
    since = pod.unused.since_seconds
    if since is None or state.now_seconds is None:
        return True
    return state.now_seconds - since >= PATIENCE_SECONDS[pod.unused.way]


def _way(pod: LivePod) -> str:
    return pod.unused.way if pod.unused else ""


def _gpus(pod: LivePod) -> int:
    return pod.unused.gpus if pod.unused else 0
