"""What keeps GPUs without a pod: claims that were allocated, groups and workloads let in.

A ResourceClaim keeps its devices while pods are in its `reservedFor`, though these be gone; a
PodGroup of Volcano keeps its `minResources` from the time it may enter its queue, a Workload of
Kueue its quota from its admission, a Reservation of Koordinator what it has on its node. Sources:
Kubernetes documentation, "Dynamic Resource Allocation"; Volcano, "PodGroup"; Kueue, "Workload";
Koordinator, "Resource Reservation".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ridgeline.queue.doctor.state import HeldForNobody
from ridgeline.queue.readers.kube_claims import allocated_gpus
from ridgeline.queue.readers.kube_pods import GANGS, is_gpu, name_of, whole
from ridgeline.queue.readers.kube_sections import mappings_in, section, unix_seconds
from ridgeline.queue.readers.kube_templates import OF_KUEUE

OF_VOLCANO = "scheduling.volcano.sh/"
_LET_IN = ("Inqueue", "Running")


def kept_for_nobody(objects: Sequence[dict[str, Any]], where: str) -> tuple[HeldForNobody, ...]:
    """All that keeps GPUs and has no pod among the objects that were read.

    Raises:
        InputError: What a group keeps is no amount.
    """
    pods = [one for one in objects if one["kind"] == "Pod" and not _ended(one)]
    names = {name_of(one) for one in pods}
    claimed = {claim for one in pods for claim in _claims(one)}
    groups = {group for one in pods for group in _groups(one)}
    owners = {owner for one in pods for owner in _owners(one)}
    found = []
    for one in objects:
        name, kind = name_of(one), one["kind"]
        if kind == "ResourceClaim" and name not in claimed and not _users(one) & names:
            found.append(_kept(one, "claim", allocated_gpus(one)))
        elif kind == "PodGroup" and _is_let_in(one) and name not in groups:
            found.append(_kept(one, "group", _least(one, f"{where}: PodGroup {name}")))
        elif kind == "Reservation" and section(one, "status").get("phase") == "Available":
            found.append(_kept(one, "reservation", _left_of(one, f"{where}: Reservation {name}")))
        elif kind == "Workload" and _is_admitted(one) and not _jobs(one) & (owners | names):
            found.append(_kept(one, "workload", _admitted_gpus(one, f"{where}: Workload {name}")))
    return tuple(one for one in found if one.gpus)


def _kept(one: dict[str, Any], way: str, gpus: int) -> HeldForNobody:
    made = section(one, "metadata").get("creationTimestamp")
    return HeldForNobody(
        name=f"{one['kind']} {name_of(one)}", way=way, gpus=gpus, since_seconds=unix_seconds(made)
    )


def _ended(pod: dict[str, Any]) -> bool:
    return section(pod, "status").get("phase") in ("Succeeded", "Failed")


def _claims(pod: dict[str, Any]) -> Iterator[str]:
    namespace = section(pod, "metadata").get("namespace")
    told = mappings_in(section(pod, "spec").get("resourceClaims"))
    told += mappings_in(section(pod, "status").get("resourceClaimStatuses"))
    for one in told:
        if one.get("resourceClaimName"):
            yield f"{namespace}/{one['resourceClaimName']}"


def _groups(pod: dict[str, Any]) -> Iterator[str]:
    about = section(pod, "metadata")
    words = {**section(about, "labels"), **section(about, "annotations")}
    for label in GANGS:
        if label in words:
            yield f"{about.get('namespace')}/{words[label]}"


def _owners(one: dict[str, Any]) -> Iterator[str]:
    about = section(one, "metadata")
    for owner in mappings_in(about.get("ownerReferences")):
        yield f"{about.get('namespace')}/{owner.get('name')}"
    for label, value in section(about, "labels").items():
        if label.endswith("-name") or label == "ray.io/cluster":  # of the job above the owner
            yield f"{about.get('namespace')}/{value}"


def _users(claim: dict[str, Any]) -> set[str]:
    """The pods that a claim is reserved for."""
    namespace = section(claim, "metadata").get("namespace")
    return {f"{namespace}/{one.get('name')}"
            for one in mappings_in(section(claim, "status").get("reservedFor"))}  # fmt: skip


def _is_let_in(group: dict[str, Any]) -> bool:
    of_volcano = str(group.get("apiVersion")).startswith(OF_VOLCANO)
    return of_volcano and section(group, "status").get("phase") in _LET_IN


def _least(group: dict[str, Any], where: str) -> int:
    amounts = section(group, "spec", "minResources")
    return max(
        (whole(amount, name, where) for name, amount in amounts.items()
         if is_gpu(name.removeprefix("requests."))), default=0,
    )  # fmt: skip


def _left_of(reservation: dict[str, Any], where: str) -> int:
    """What a reservation keeps that none of its owners has."""
    status = section(reservation, "status")
    has, taken = section(status, "allocatable"), section(status, "allocated")
    return sum(whole(has[name], name, where) - whole(taken.get(name), name, where)
               for name in has if is_gpu(name))  # fmt: skip


def _is_admitted(workload: dict[str, Any]) -> bool:
    reached = {
        str(c.get("type"))
        for c in mappings_in(section(workload, "status").get("conditions"))
        if c.get("status") == "True"
    }
    of_kueue = str(workload.get("apiVersion")).startswith(OF_KUEUE)
    return of_kueue and "Admitted" in reached and "Finished" not in reached


def _jobs(workload: dict[str, Any]) -> set[str]:
    """The objects that a Workload stands for, pods among them."""
    about = section(workload, "metadata")
    return {f"{about.get('namespace')}/{owner.get('name')}"
            for owner in mappings_in(about.get("ownerReferences"))}  # fmt: skip


def _admitted_gpus(workload: dict[str, Any], where: str) -> int:
    parts = mappings_in(section(workload, "status", "admission").get("podSetAssignments"))
    return sum(
        whole(amount, name, where)
        for part in parts
        for name, amount in section(part, "resourceUsage").items()
        if is_gpu(name)
    )
