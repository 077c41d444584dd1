"""GPUs that pods ask for by a name under which no node offers any.

Time-slicing may rename `nvidia.com/gpu` to `nvidia.com/gpu.shared` (`renameByDefault` of NVIDIA's
device plugin), makers and clouds have names of their own, and MIG has one for each profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ridgeline.queue.doctor.constraints import RESOURCE, Requirement
from ridgeline.queue.doctor.state import LivePod
from ridgeline.queue.readers.kube_pods import is_gpu, name_of
from ridgeline.queue.readers.kube_sections import mappings_in, section


def bound_by_names(pods: Sequence[LivePod], objects: Sequence[dict[str, Any]]) -> list[LivePod]:
    """The pods, of which those may be on no node that ask for GPUs by a name that none offers."""
    offered = {
        name
        for one in objects
        if one["kind"] == "Node"
        for kind in ("capacity", "allocatable")
        for name, amount in section(one, "status", kind).items()
        if is_gpu(name) and str(amount) != "0"
    }
    if not offered:
        return list(pods)
    lacking = {}
    for one in objects:
        if one["kind"] == "Pod":
            names = {
                name
                for container in mappings_in(section(one, "spec").get("containers"))
                for kind in ("limits", "requests")
                for name, amount in section(container, "resources", kind).items()
                if is_gpu(name) and str(amount) != "0"
            }
            if missing := sorted(names - offered):
                lacking[name_of(one)] = missing[0]
    said = ", ".join(sorted(offered))
    return [
        replace(pod, constraints=replace(pod.constraints, selector=(
            *pod.constraints.selector,
            Requirement(key=f"{RESOURCE}{lacking[pod.name]}, where nodes offer {said}",
                        operator="Exists"),
        )))
        if pod.name in lacking and not pod.node else pod
        for pod in pods
    ]  # fmt: skip
