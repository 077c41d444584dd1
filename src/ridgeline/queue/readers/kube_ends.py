"""Pods that did not come to their own end: who ended them, and which ones kubelet refused.

Sources: Kubernetes documentation, "Disruptions" (reasons of the condition DisruptionTarget) and
"Node topology manager"; kubelet's reasons of admission (`pkg/kubelet/lifecycle`).

Runs that the scheduler ended for others are told by its events: it deletes the pods that it evicts.
Events live for an hour by default (`--event-ttl` of the API server), so that they tell of the last
runs alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from ridgeline import quantity
from ridgeline.queue.doctor.state import LivePod, ToldReason
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


_FOR_OTHERS = ToldReason(way="scheduler", said="Preempted")
_AT = ("lastTimestamp", "eventTime", "firstTimestamp")


def evicted_runs(objects: Sequence[dict[str, Any]], pods: Sequence[LivePod]) -> list[LivePod]:
    """A pod that has ended for each eviction of a workload whose pods are still known."""
    moments: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for reason, name, at in _events(objects):
        moments[name][reason].append(at)
    known = {pod.name: pod for pod in pods}
    by_stem = {_stem(pod.name): pod for pod in pods}
    found = []
    for name, told in moments.items():
        pod = known.get(name) or by_stem.get(_stem(name))
        if pod is None or pod.evicted:
            continue
        evicted = sorted(set(told["Preempted"]))
        for number, end in enumerate(evicted):
            before = [at for at in (*told["Scheduled"], *evicted[:number]) if at < end]
            if before:
                found.append(
                    LivePod(
                        name=f"{name} run {number}", workload=pod.workload, num_gpus=pod.num_gpus,
                        done=True, evicted=_FOR_OTHERS, started_seconds=max(before),
                        ended_seconds=end,
                    )
                )  # fmt: skip
    return found


def _events(objects: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, float]]:
    """Reason, pod and moment of each event that starts or ends a run."""
    for one in objects:
        if one["kind"] != "Event" or one.get("reason") not in ("Preempted", "Scheduled"):
            continue
        about = section(one, "involvedObject") or section(one, "regarding")
        at = next((t for key in _AT if (t := unix_seconds(one.get(key))) is not None), None)
        if about.get("kind") == "Pod" and at is not None:
            yield str(one["reason"]), f"{about.get('namespace')}/{about.get('name')}", at


def _stem(name: str) -> str:
    """The part of a pod's name that all pods of its workload have."""
    return name.rpartition("-")[0]
