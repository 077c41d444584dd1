"""How many pods of a workload start together, and how many it computes with.

A PodGroup that is content with fewer than all ranks of a workload starts it in part. An elastic
workload does not wait for more pods than its own least number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ridgeline.queue.doctor.state import LivePod
from ridgeline.queue.readers.kube_pods import name_of
from ridgeline.queue.readers.kube_sections import mappings_in, section


def gangs_held_to_groups(
    pods: Sequence[LivePod], objects: Sequence[dict[str, Any]]
) -> list[LivePod]:
    """The pods, of which those whose group is content with fewer than it has are no gang."""
    least = {
        name_of(one): number
        for one in objects
        if one["kind"] == "PodGroup" and (number := _least_members(section(one, "spec")))
    }
    members = Counter(pod.group for pod in pods if pod.group and not pod.done)
    return [
        replace(pod, gang=False)
        if pod.gang and least.get(pod.group, members[pod.group]) < members[pod.group]
        else pod
        for pod in pods
    ]


def enough_pods(objects: Sequence[dict[str, Any]]) -> dict[str, int]:
    """With how many pods each elastic workload computes, by its name among those of pods."""
    found = {}
    for one in objects:
        spec = section(one, "spec")
        if one["kind"] == "RayCluster" and spec.get("enableInTreeAutoscaling"):
            groups = mappings_in(spec.get("workerGroupSpecs"))
            found[f"RayCluster {name_of(one)}"] = sum(_number(g.get("minReplicas")) for g in groups)
        elif section(spec, "elasticPolicy"):
            least = _number(section(spec, "elasticPolicy").get("minReplicas"))
            found[f"training job {name_of(one)}"] = max(1, least)
    return found


def _least_members(spec: dict[str, Any]) -> int:
    """A group's least number of members, in the words of each API that has groups."""
    gang = section(spec, "schedulingPolicy", "gang") or section(spec, "gang")
    return _number(spec.get("minMember")) or _number(gang.get("minCount"))


def _number(found: object) -> int:
    return found if isinstance(found, int) else 0
