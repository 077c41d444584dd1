"""Pods that did not come to their own end: who ended them, and which ones kubelet refused.

Sources: Kubernetes documentation, "Disruptions" (reasons of the condition DisruptionTarget) and
"Node topology manager"; kubelet's reasons of admission (`pkg/kubelet/lifecycle`).
"""

from __future__ import annotations

from typing import Any

from ridgeline import quantity
from ridgeline.queue.doctor.state import ToldReason
from ridgeline.queue.readers.kube_sections import mappings_in, section, unix_seconds

_ENDED_BY = {
    "Preemption": "scheduler",
    "DeletionByTaintManager": "node",
    "DeletionByPodGC": "node",
    "TerminationByKubelet": "node",
    "EvictionByEvictionAPI": "api",
}
"""How reasons of the condition DisruptionTarget begin, and who that is."""
_NO_DEVICES = ("UnexpectedAdmissionError", "OutOf")
_TOPOLOGY = ("TopologyAffinityError", "SMTAlignmentError")
_OTHER = ("NodeAffinity", "NodeName", "NodePorts", "PodOSNotSupported", "InvalidNodeInfo")
_LONGEST = 160
OFTEN = 5
SHORT_SECONDS = 3600.0
"""A run that failed after less has hardly paid for its start."""


def evicted_by(status: dict[str, Any]) -> ToldReason | None:
    """Who ended a pod before its time (scheduler, kubelet, node, api), and why; none: nobody."""
    message = str(status.get("message") or "")[:_LONGEST]
    if status.get("phase") == "Failed" and status.get("reason") == "Evicted":
        return ToldReason(way="kubelet", said=message)
    for told in mappings_in(status.get("conditions")):
        if told.get("type") == "DisruptionTarget" and told.get("status") == "True":
            reason = str(told.get("reason"))
            who = next((who for begin, who in _ENDED_BY.items() if reason.startswith(begin)), "")
            return ToldReason(way=who, said=reason) if who else None
    return None


def restarted_often(status: dict[str, Any], now_started: float | None) -> str:
    """How often a container was started anew after short runs, and why; empty: not often.

    Args:
        status: A pod's.
        now_started: When the pod was started, in Unix time.
    """
    for one in mappings_in(status.get("containerStatuses")):
        last, times = section(one, "lastState", "terminated"), one.get("restartCount")
        begins, ends = (unix_seconds(last.get(key)) for key in ("startedAt", "finishedAt"))
        if not isinstance(times, int) or times < OFTEN or begins is None or ends is None:
            continue
        lived = ends - (now_started if now_started is not None else begins)
        if (
            last.get("exitCode")
            and times * SHORT_SECONDS >= lived
            and ends - begins < SHORT_SECONDS
        ):
            why = f"{last.get('reason')}, exit code {last.get('exitCode')}"
            ran = quantity.seconds(ends - begins)
            return f"was started anew {times} times, last after {ran} ({why})"
    return ""


def refused_by_kubelet(status: dict[str, Any]) -> ToldReason | None:
    """Why the kubelet of its node did not take a pod in; none: it did, or nobody says."""
    reason = str(status.get("reason") or "")
    if status.get("phase") != "Failed" or status.get("containerStatuses"):
        return None
    ways = {"devices": _NO_DEVICES, "topology": _TOPOLOGY, "": _OTHER}
    way = next((way for way, begins in ways.items() if reason.startswith(begins)), None)
    if way is None:
        return None
    message = str(status.get("message") or "").removeprefix("Pod was rejected: ").strip()
    return ToldReason(way=way, said=f"{reason}: {message[:_LONGEST]}".strip(": "))
