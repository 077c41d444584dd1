"""Pods that did not come to their own end: who ended them, and which ones kubelet refused.

Sources: Kubernetes documentation, "Disruptions" (reasons of the condition DisruptionTarget) and
"Node topology manager"; kubelet's reasons of admission (`pkg/kubelet/lifecycle`).
"""

from __future__ import annotations

from typing import Any

from ridgeline.queue.doctor.state import ToldReason

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


def evicted_by(conditions: list[dict[str, Any]]) -> str:
    """Who ended a pod before its time: `scheduler`, `node` or `api`; empty: nobody did."""
    for told in conditions:
        if told.get("type") == "DisruptionTarget" and told.get("status") == "True":
            reason = str(told.get("reason"))
            return next((who for begin, who in _ENDED_BY.items() if reason.startswith(begin)), "")
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
