"""The services whose pods come in generations: each RayService has a RayCluster, or two meanwhile.

KubeRay starts the next cluster of a service beside the one that serves, and ends that one once the
next is ready. Source: KubeRay documentation, "RayService", zero-downtime upgrade.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ridgeline.queue.doctor.state import LivePod
from ridgeline.queue.readers.kube_pods import name_of
from ridgeline.queue.readers.kube_sections import mappings_in, section

RAY_SERVICE = "RayService"
_KIND, _NAME = "ray.io/originated-from-crd", "ray.io/originated-from-cr-name"


def in_services(pods: Sequence[LivePod], objects: Sequence[dict[str, Any]]) -> list[LivePod]:
    """The pods, each with the service that its cluster is of, by its labels or the cluster's."""
    services = {
        f"RayCluster {name_of(one)}": str(owner.get("name"))
        for one in objects
        if one["kind"] == "RayCluster"
        for owner in mappings_in(section(one, "metadata").get("ownerReferences"))
        if owner.get("kind") == RAY_SERVICE
    }

    def of_pod(pod: LivePod) -> str:
        own = pod.labels.get(_NAME) if pod.labels.get(_KIND) == RAY_SERVICE else None
        name = own or services.get(pod.workload)
        return f"{RAY_SERVICE} {pod.name.partition('/')[0]}/{name}" if name else ""

    return [replace(pod, service=service) if (service := of_pod(pod)) else pod for pod in pods]
