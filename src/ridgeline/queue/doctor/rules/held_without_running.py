"""Pods hold GPUs of a node and do not run: they crash, lack their image, or never go."""

from __future__ import annotations

from collections import Counter

from ridgeline import quantity
from ridgeline.quantity import several
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import (
    CONFIGURING,
    NOT_READY,
    OUTLIVED,
    SLURM,
    LiveCluster,
    LivePod,
)
from ridgeline.records.queue_finding import QueueFinding

PATIENCE_SECONDS = 900.0
"""For so long pulling an image, mounting volumes and saving a last checkpoint may take."""
LASTING = ("CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName",
           "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
           "StartError", CONFIGURING)  # fmt: skip
"""Reasons of kubelet for which a container waits that time alone does not cure."""
STARTING_SECONDS = 3600.0
"""A pod that is still being created after this long lacks a volume, a secret or a network."""


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs of pods that are on a node and have not run, or should have gone, for long."""
    held = {pod.name: why for pod in state.running if pod.num_gpus and (why := _why(state, pod))}
    if not held:
        return None
    pods = [pod for pod in state.running if pod.name in held]
    pods.sort(key=lambda pod: (-pod.num_gpus, pod.name))
    first, reasons = pods[0], Counter(held.values())
    lost = sum(pod.num_gpus for pod in pods)
    return found(
        "held-without-running",
        lost_gpus=lost,
        counted="held by pods that do not run",
        confidence=0.9,
        summary=f"{several(len(pods), 'pod')} hold {several(lost, 'GPU')} and do not run:"
        f" {first.name} {held[first.name]}"
        + (f", and {several(len(pods) - 1, 'more pod')}" if len(pods) > 1 else ""),
        evidence={"pods": len(pods), **dict(reasons)},
        where=[pod.name for pod in pods],
        way=_way(first),
        filled={"pod": first.name.rpartition("/")[2], "namespace": first.name.partition("/")[0]},
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """The pods are gone, and others have their GPUs."""
    gone = frozenset(finding.where)
    return ClusterAhead(state=state, idle=gone), ClusterAhead(state=state.without_pods(gone))


def _outstays(state: LiveCluster, pod: LivePod) -> bool:
    """Whether a pod that is to go has taken long already, and may yet, while others wait."""
    now, ends = state.now_seconds or 0.0, pod.deleted_seconds or 0.0
    begun = ends - pod.grace_seconds
    return ends - now >= PATIENCE_SECONDS <= now - begun and any(
        one.num_gpus for one in state.waiting
    )


def _way(pod: LivePod) -> str:
    if pod.stalled == OUTLIVED:
        return "outlived"
    if pod.says("restarts"):
        return "restarted"
    if pod.deleted_seconds is not None and pod.grace_seconds >= PATIENCE_SECONDS:
        return "grace"
    return "image" if pod.stalled_by and pod.stalled_by.way == "image" else ""


def _why(state: LiveCluster, pod: LivePod) -> str:
    """Why a pod does not run; empty: it does, or may yet."""
    now = state.now_seconds
    if now is None:
        return ""
    if pod.stalled == OUTLIVED and pod.ended_seconds is not None:
        ago = now - pod.ended_seconds
        return "has ended, and others of its containers run on" if ago >= PATIENCE_SECONDS else ""
    if pod.deleted_seconds is not None and now - pod.deleted_seconds >= PATIENCE_SECONDS:
        if any(node.name == pod.node and node.closed == NOT_READY for node in state.nodes):
            return ""  # its node is lost, and what it had with it
        ended = "has ended and still completes" if state.scheduler == SLURM else ""
        return ended or "was deleted and is not gone"
    if pod.deleted_seconds is not None and _outstays(state, pod):
        left = quantity.seconds(pod.deleted_seconds - now)
        return f"was deleted and has a grace period of {left} yet"
    if restarts := pod.says("restarts"):
        return restarts
    times = (pod.started_seconds, pod.created_seconds, now)
    since = now - next(one for one in times if one is not None)
    told = pod.stalled in LASTING or pod.stalled_by
    by = f": {pod.stalled_by.said}" if pod.stalled_by else ""
    patience = PATIENCE_SECONDS if told else STARTING_SECONDS
    return f"is in {pod.stalled}{by}" if pod.stalled and since >= patience else ""
