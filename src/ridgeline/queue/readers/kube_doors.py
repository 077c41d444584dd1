"""Why nodes take no pods, and what keeps them so: a drain that a disruption budget never ends.

Kubernetes marks a node that is short of disk, memory or process ids, or has no network, by a taint
of its own (documentation, "Taints and Tolerations", "Node conditions").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ridgeline.queue.doctor.constraints import HARD
from ridgeline.queue.doctor.state import NOT_READY
from ridgeline.queue.readers.kube_constraints import selects
from ridgeline.queue.readers.kube_pods import name_of
from ridgeline.queue.readers.kube_sections import mappings_in, section, unix_seconds

PRESSURE, GUARDED = "pressure", "guarded"
"""What closes a node: its own shortage; a drain that does not end."""
_SHORT = {
    "node.kubernetes.io/disk-pressure": ("DiskPressure", "short of disk"),
    "node.kubernetes.io/memory-pressure": ("MemoryPressure", "short of memory"),
    "node.kubernetes.io/pid-pressure": ("PIDPressure", "short of process ids"),
    "node.kubernetes.io/network-unavailable": ("NetworkUnavailable", "without network"),
    "node.kubernetes.io/out-of-service": ("", "out of service"),
    "node.cloudprovider.kubernetes.io/uninitialized": ("", "not set up by its cloud yet"),
}
"""Taints of the system, the condition that each goes with, and what it is in words."""


class NodeDoor(NamedTuple):
    """Whether a node takes pods."""

    closed: str
    way: str
    since_seconds: float | None


def door_of(node: dict[str, Any], guard: str, fault: str = "") -> NodeDoor:
    """Why a node takes no pods, and since when at the earliest.

    Args:
        node: The node's object.
        guard: What keeps its drain from ending; empty: nothing.
        fault: What it says is wrong with it; empty: nothing.
    """
    made = unix_seconds(section(node, "metadata").get("creationTimestamp"))
    told = {str(c.get("type")): c for c in mappings_in(section(node, "status").get("conditions"))}
    ready = told.get("Ready", {})
    if section(node, "spec").get("unschedulable"):
        also = guard or fault
        said = f"cordoned, and {also}" if also else "cordoned"
        return NodeDoor(said, GUARDED if guard else "", made)
    if ready and ready.get("status") != "True":
        return NodeDoor(NOT_READY, "", unix_seconds(ready.get("lastTransitionTime")) or made)
    for taint in mappings_in(section(node, "spec").get("taints")):
        kind, words = _SHORT.get(str(taint.get("key")), ("", ""))
        if words and taint.get("effect") in HARD:
            at = taint.get("timeAdded") or told.get(kind, {}).get("lastTransitionTime")
            said = f"{words} ({kind})" if kind else words
            return NodeDoor(said, PRESSURE, unix_seconds(at) or made)
    return NodeDoor("", "", made)


def guarded_nodes(objects: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The disruption budget, by node, that lets no pod of the node go, as a clause."""
    pods = [one for one in objects if one["kind"] == "Pod" and section(one, "spec").get("nodeName")]
    found: dict[str, str] = {}
    for one in objects:
        if one["kind"] != "PodDisruptionBudget":
            continue
        if section(one, "status").get("disruptionsAllowed") != 0:
            continue
        for node in _nodes_of(one, pods):
            found.setdefault(
                node, f"PodDisruptionBudget {name_of(one)} lets none of its pods there go"
            )
    return found


def _nodes_of(budget: dict[str, Any], pods: Sequence[dict[str, Any]]) -> Iterator[str]:
    namespace = section(budget, "metadata").get("namespace")
    selector = section(budget, "spec", "selector")
    for pod in pods:
        about = section(pod, "metadata")
        if about.get("namespace") == namespace and selects(selector, section(about, "labels")):
            yield str(section(pod, "spec")["nodeName"])
