"""Pods wait for some nodes only, by partition, kind of GPU or label, while others have room."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ridgeline.quantity import several
from ridgeline.queue.doctor.constraints import Constraints
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, LiveNode, LivePod
from ridgeline.records.queue_finding import QueueFinding

MODEL = "kind of GPU"
CONSIDERABLE = 0.25
"""The part of a cluster's GPUs below which a few nodes may well be kept free for trials."""


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of waiting pods that would start if they might be on nodes of others as well."""
    bound = {pod.name: pod for pod in state.waiting if pod.num_gpus and _able(state, pod)}
    if not bound:
        return None
    now = set(starting_now(state))
    starting = starting_now(_unbound(state, set(bound)))
    helped = [bound[name] for name in starting if name in bound and name not in now]
    lost = sum(pod.num_gpus for pod in helped)
    if not helped or lost < CONSIDERABLE * sum(node.num_gpus for node in state.nodes):
        return None
    first = helped[0]
    by = Counter(why for pod in helped for why in _bonds(pod))
    others = [
        node.name for node in state.nodes
        if node.num_gpus >= first.num_gpus and not node.closed and not _admits(first, node)
    ]  # fmt: skip
    bare = bool(first.model) and all(not node.model for node in state.nodes if node.name in others)
    return found(
        "bound-to-some-nodes",
        way="unlabelled" if bare else "",
        lost_gpus=lost,
        counted="asked for by waiting pods that would start on nodes that they do not ask for",
        confidence=0.6,
        summary=f"{several(len(helped), 'pod')} of {several(lost, 'GPU')} wait for nodes by"
        f" {' and '.join(by)}, while {several(len(others), 'other node')} ({others[0]}) could run"
        f" them: {first.name}" + (" (no label tells the kind of their GPUs)" if bare else ""),
        evidence={"pods": len(helped), "other_nodes": len(others),
                  **{f"pods bound by {why}": number for why, number in by.items()}},
        where=[pod.name for pod in helped],
        filled={"node": others[0], "by": " and ".join(by)},
    )  # fmt: skip


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """The pods may be on any node that they tolerate."""
    after = _unbound(state, set(finding.where))
    return ClusterAhead(state=state), ClusterAhead(state=after)


def _able(state: LiveCluster, pod: LivePod) -> bool:
    """Whether a pod is bound, and some open node of enough GPUs admits it."""
    return bool(_bonds(pod)) and any(
        node.num_gpus >= pod.num_gpus and not node.closed and _admits(pod, node)
        for node in state.nodes
    )


def _admits(pod: LivePod, node: LiveNode) -> bool:
    return pod.model in ("", node.model) and not pod.constraints.keeps_off(node.labels, ())


def _bonds(pod: LivePod) -> list[str]:
    """By what a pod is bound to nodes, each once."""
    keys = [one.key for one in pod.constraints.selector]
    keys += [one.key for term in pod.constraints.terms for one in term]
    return list(dict.fromkeys([*([MODEL] if pod.model else []), *keys]))


def _unbound(state: LiveCluster, names: set[str]) -> LiveCluster:
    """The cluster in which these pods may be on any node whose taints they tolerate."""
    pods = [
        replace(pod, model="", constraints=_tolerating(pod.constraints))
        if pod.name in names
        else pod
        for pod in state.pods
    ]
    return replace(state, pods=tuple(pods))


def _tolerating(asked: Constraints) -> Constraints:
    return replace(asked, selector=(), terms=())
