"""Pod templates inside of workloads, however deep they lie, and how often each is to run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ridgeline.queue.doctor.state import AskedTemplate
from ridgeline.queue.readers.kube_pods import is_gpu, name_of
from ridgeline.queue.readers.kube_sections import section
from ridgeline.records.kube_quantity import parse_quantity

OF_KUEUE = "kueue.x-k8s.io/"
_NO_PODS = ("Reservation", "ClusterReservation")
"""Kinds whose template says for what they keep room (Koordinator), and makes no pods."""


def templates_of(one: dict[str, Any]) -> Iterator[AskedTemplate]:
    """GPUs that the pod templates inside of a workload ask for, however deep they lie."""
    if one["kind"] == "Workload" and str(one.get("apiVersion")).startswith(OF_KUEUE):
        return  # Kueue's own account of a job, which has the template that pods are made from
    if one["kind"] in _NO_PODS:
        return
    workload = f"{one['kind']} {name_of(one)}"
    for replicas, spec in pod_specs(one.get("spec"), 1):
        of_a_pod = _in_quotas(spec)
        for container in spec["containers"]:
            resources = section(container, "resources")
            requests, limits = section(resources, "requests"), section(resources, "limits")
            for name in sorted({*requests, *limits}):
                if is_gpu(name) or "/mig-" in name:
                    yield AskedTemplate(
                        workload=workload, replicas=replicas, resource=name,
                        requests=_text(requests.get(name)), limits=_text(limits.get(name)),
                        suspended=section(one, "spec").get("suspend") is True, of_a_pod=of_a_pod,
                    )  # fmt: skip


def _in_quotas(spec: dict[str, Any]) -> dict[str, float]:
    """What a pod counts for in a ResourceQuota, by the quota's names; a bad amount for nothing."""
    found: dict[str, float] = {"pods": 1.0, "count/pods": 1.0}
    for container in spec["containers"]:
        limits = section(container, "resources", "limits")
        requests = {**limits, **section(container, "resources", "requests")}
        for prefix, amounts in (("limits.", limits), ("requests.", requests)):
            for name, told in amounts.items():
                named = [f"{prefix}{name}"] + [name] * (prefix == "requests.")
                for key in named:
                    found[key] = found.get(key, 0.0) + float(parse_quantity(told) or 0)
    return found


def pod_specs(found: object, replicas: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The specs of pods below an object, each with its number of pods."""
    if isinstance(found, list):
        for one in found:
            yield from pod_specs(one, replicas)
    if not isinstance(found, dict):
        return
    for key in ("replicas", "parallelism", "minAvailable", "numNodes"):
        if isinstance(found.get(key), int) and found[key] > 0:
            replicas *= found[key]
            break
    containers = found.get("containers")
    if isinstance(containers, list) and all(isinstance(one, dict) for one in containers):
        yield replicas, found
        return
    for one in found.values():
        yield from pod_specs(one, replicas)


def _text(amount: object) -> str | None:
    return None if amount is None else str(amount)
