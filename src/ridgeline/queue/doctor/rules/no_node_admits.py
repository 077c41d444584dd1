"""Pods wait that no node admits, by taints, labels, volumes or claims, though GPUs are free."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ridgeline.quantity import several
from ridgeline.queue.doctor.constraints import RESOURCE, Constraints, Tolerated
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, starting_now
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding

MODEL_LABEL = "nvidia.com/gpu.product"


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of waiting pods that would start if any node admitted them, and none ever will."""
    barred = {pod.name: reasons for pod in state.waiting
              if pod.num_gpus and (reasons := _reasons(state, pod))}  # fmt: skip
    if not barred:
        return _as_is_said(state)
    starting = set(starting_now(_of_any_model(state), anywhere=True))
    helped = [pod for pod in state.waiting if pod.name in barred and pod.name in starting]
    if not helped:
        return None
    lost = sum(pod.num_gpus for pod in helped)
    first = helped[0]
    reasons = barred[first.name]
    reason, nodes = reasons.most_common(1)[0]
    kind, _, key = reason.partition(" ")
    return found(
        "no-node-admits",
        lost_gpus=lost,
        counted="asked for by waiting pods for which GPUs are free, on nodes that keep them off",
        confidence=0.95,
        summary=f"{several(len(helped), 'pod')} can be on no node at all: {first.name} is kept off"
        f" {several(nodes, 'node')} by {kind} {key}",
        evidence={"pods": len(helped), **{f"nodes kept off by {why}": n
                                          for why, n in reasons.items()}},
        where=[pod.name for pod in helped],
        way="resource" if kind == RESOURCE.strip() else "",
        filled={"key": key, "kind": kind},
    )  # fmt: skip


def _as_is_said(state: LiveCluster) -> QueueFinding | None:
    """GPUs of pods that would start now, had kube-scheduler not found that nodes will not do."""
    starting = set(starting_now(state))
    helped = [pod for pod in state.waiting
              if _told(pod) and pod.name in starting]  # fmt: skip
    if not helped:
        return None
    lost, first = sum(pod.num_gpus for pod in helped), helped[0]
    way = "volumes" if first.says("volumes") else "claims"
    return found(
        "no-node-admits",
        way=way,
        lost_gpus=lost,
        counted="asked for by waiting pods for which GPUs are free, on nodes that their"
        f" {way} keep them off",
        confidence=0.85,
        summary=f"{several(len(helped), 'pod')} cannot be where GPUs are free: kube-scheduler says"
        f" of {first.name}: {_told(first)}",
        evidence={"pods": len(helped), **Counter(_told(pod) for pod in helped)},
        where=[pod.name for pod in helped],
        filled={"pod": first.name.rpartition("/")[2], "namespace": first.name.partition("/")[0]},
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """Nodes of any kind admit the pods."""
    barred = set(finding.where)
    if any(_told(pod) for pod in state.pods if pod.name in barred):
        return "which nodes the volumes or devices may be on is not in the state"
    anywhere = Constraints(tolerated=(Tolerated(operator="Exists"),))
    after = state.with_pods(barred, model="", constraints=anywhere)
    return ClusterAhead(state=state), ClusterAhead(state=after)


def _reasons(state: LiveCluster, pod: LivePod) -> Counter[str]:
    """Why each node of enough GPUs keeps a pod off; empty where one does not."""
    reasons: Counter[str] = Counter()
    unknown = _asks_for_no_model_here(state, pod)
    for node in state.nodes:
        if node.num_gpus >= pod.num_gpus and (unknown or pod.model in ("", node.model)):
            why = pod.constraints.keeps_off(node.labels, node.taints)
            if unknown:
                why = f"label {MODEL_LABEL}"
            if not why:
                return Counter()
            reasons[why] += 1
    return reasons


def _asks_for_no_model_here(state: LiveCluster, pod: LivePod) -> bool:
    """Whether no node has the GPU model that a pod insists on: it is misspelt, or not there."""
    return bool(pod.model) and all(node.model != pod.model for node in state.nodes)


def _of_any_model(state: LiveCluster) -> LiveCluster:
    """The cluster in which pods take any GPU where no node has the model they insist on."""
    pods = [replace(pod, model="") if _asks_for_no_model_here(state, pod) else pod
            for pod in state.pods]  # fmt: skip
    return replace(state, pods=tuple(pods))


def _told(pod: LivePod) -> str:
    """What kube-scheduler says of volumes or claims of a pod; empty: nothing."""
    return pod.says("volumes") or pod.says("claims")
