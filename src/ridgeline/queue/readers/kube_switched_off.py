"""Pods that hold GPUs which their own settings hide: an empty list of devices, or Ray's num-gpus.

Source: CUDA C++ Programming Guide, CUDA_VISIBLE_DEVICES; KubeRay, rayStartParams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ridgeline.queue.doctor.state import LivePod
from ridgeline.queue.readers.kube_pods import is_gpu, name_of
from ridgeline.queue.readers.kube_sections import mappings_in, section

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NONE = ("", "-1", "none", "NoDevFiles")


def with_switched_off(pods: Sequence[LivePod], objects: Sequence[dict[str, Any]]) -> list[LivePod]:
    """The pods, each with the setting that hides all of its GPUs, if one does."""
    by_group = _ray_groups(objects)
    why = {name_of(one): _why(one, by_group) for one in objects if one["kind"] == "Pod"}
    return [replace(pod, switched_off=why.get(pod.name, "")) for pod in pods]


def _why(pod: dict[str, Any], by_group: dict[tuple[str, str], str]) -> str:
    labels = section(pod, "metadata", "labels")
    namespace = section(pod, "metadata").get("namespace")
    head = labels.get("ray.io/node-type") == "head"
    group = "head" if head else str(labels.get("ray.io/group"))
    if told := by_group.get((f"{namespace}/{labels.get('ray.io/cluster')}", group)):
        return told
    with_gpus = [
        one
        for one in mappings_in(section(pod, "spec").get("containers"))
        if any(is_gpu(name) for name in section(one, "resources", "limits"))
    ]
    hidden = [_hidden_by(one) for one in with_gpus]
    return hidden[0] if hidden and all(hidden) else ""


def _hidden_by(container: dict[str, Any]) -> str:
    """The variable by which a container sees no GPU; empty: none does."""
    for one in mappings_in(container.get("env")):
        value = one.get("value", "" if "valueFrom" not in one else None)
        if one.get("name") in _VISIBLE and value in _NONE:
            return f"{one['name']}={value!r}"
    return ""


def _ray_groups(objects: Sequence[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """The groups of Ray clusters that are started with no GPUs, by cluster and group."""
    found = {}
    for one in objects:
        if one["kind"] != "RayCluster":
            continue
        spec = section(one, "spec")
        groups = [("head", section(spec, "headGroupSpec"))]
        groups += [(str(g.get("groupName")), g) for g in mappings_in(spec.get("workerGroupSpecs"))]
        for name, group in groups:
            if str(section(group, "rayStartParams").get("num-gpus", "")).strip() == "0":
                found[name_of(one), name] = "rayStartParams num-gpus: 0"
    return found
