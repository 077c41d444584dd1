"""The quotas of GPUs that Kueue's ClusterQueues set, with the LocalQueues that lead to them.

A ResourceQuota refuses pods instead of letting them wait: nobody sees them, so it is not read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from ridgeline.queue.doctor.state import GpuQuota
from ridgeline.queue.readers.kube_pods import is_gpu, name_of, section, whole


def quotas_of(objects: Sequence[dict[str, Any]], where: str) -> tuple[GpuQuota, ...]:
    """All quotas of whole GPUs.

    Raises:
        InputError: A quota is no amount.
    """
    local: dict[str, list[str]] = defaultdict(list)
    for one in objects:
        if one["kind"] == "LocalQueue":
            local[str(section(one, "spec").get("clusterQueue") or "")].append(name_of(one))
    found = []
    for one in objects:
        at = f"{where}: {one['kind']} {name_of(one)}"
        if one["kind"] == "ClusterQueue":
            found += list(_of_queue(one, tuple(sorted(local[name_of(one)])), at))
    return tuple(found)


def _of_queue(one: dict[str, Any], queues: tuple[str, ...], where: str) -> Iterator[GpuQuota]:
    spec = section(one, "spec")
    limits, borrows = [], bool(spec.get("cohort") or spec.get("cohortName"))
    for group in _dicts(spec.get("resourceGroups")):
        for flavor in _dicts(group.get("flavors")):
            for resource in _dicts(flavor.get("resources")):
                if is_gpu(str(resource.get("name"))):
                    limits.append(whole(resource.get("nominalQuota"), "nominalQuota", where))
    if limits:
        yield GpuQuota(name=f"ClusterQueue {name_of(one)}", queues=queues, gpus=sum(limits),
                       borrows=borrows)  # fmt: skip


def _dicts(found: object) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
