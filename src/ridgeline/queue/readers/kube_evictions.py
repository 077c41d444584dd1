"""Runs that the scheduler ended for others, by its events: it deletes the pods that it evicts.

Events live for an hour by default (`--event-ttl` of the API server), so that they tell of the last
runs alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from ridgeline.queue.doctor.state import LivePod, ToldReason
from ridgeline.queue.readers.kube_sections import section, unix_seconds

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
