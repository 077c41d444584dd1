"""The quotas of GPUs that Kueue's ClusterQueues and Cohorts set, with the LocalQueues to them.

Flavors of one queue count together: a pod that waits may take any of them.

A ResourceQuota refuses pods instead of letting them wait: nobody sees them, so it is not read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ridgeline.queue.doctor.state import GpuQuota
from ridgeline.queue.readers.kube_pods import is_gpu, name_of, section, whole
from ridgeline.queue.shares import CohortShare, check_shares


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


def cohorts_of(objects: Sequence[dict[str, Any]], where: str) -> dict[str, CohortShare]:
    """What Cohort objects say that they have, by name, and what is above them.

    Raises:
        InputError: A quota is no amount, or a cohort is above itself.
    """
    found: dict[str, CohortShare] = {}
    for one in objects:
        if one["kind"] == "Cohort":
            limits = _limits(section(one, "spec"), f"{where}: Cohort {name_of(one)}")
            found[name_of(one)] = CohortShare(
                parent=cohort_named(section(one, "spec"), parent=True),
                quota=limits.nominal,
                borrowing_limit=limits.borrowing,
                lending_limit=limits.lending,
            )
    above = {one.parent for one in found.values()} - {""}
    found |= {name: CohortShare() for name in sorted(above - set(found))}
    check_shares({}, found, where)
    return found


def _of_queue(one: dict[str, Any], queues: tuple[str, ...], where: str) -> Iterator[GpuQuota]:
    spec = section(one, "spec")
    limits = _limits(spec, where)
    if limits.flavors:
        yield GpuQuota(
            name=f"ClusterQueue {name_of(one)}", queues=queues, gpus=limits.nominal,
            cohort=cohort_named(spec), borrowing_limit=limits.borrowing,
            lending_limit=limits.lending,
        )  # fmt: skip


def cohort_named(spec: dict[str, Any], *, parent: bool = False) -> str:
    """The cohort that a queue, or another cohort, is in, by the newer API or the older."""
    names = ("parentName", "parent") if parent else ("cohortName", "cohort")
    return next((str(spec[one]) for one in names if spec.get(one)), "")


class _Limits(NamedTuple):
    """GPUs of all flavors together; a limit that one flavor lacks, all together have none of."""

    flavors: int
    nominal: int
    borrowing: int | None
    lending: int | None


def _limits(spec: dict[str, Any], where: str) -> _Limits:
    counted = [
        resource
        for group in mappings_in(spec.get("resourceGroups"))
        for flavor in mappings_in(group.get("flavors"))
        for resource in mappings_in(flavor.get("resources"))
        if is_gpu(str(resource.get("name")))
    ]

    def together(key: str) -> int | None:
        if any(one.get(key) is None for one in counted):
            return None
        return sum(whole(one[key], key, where) for one in counted)

    nominal = sum(whole(one.get("nominalQuota"), "nominalQuota", where) for one in counted)
    if not counted:
        return _Limits(0, 0, None, None)
    return _Limits(len(counted), nominal, together("borrowingLimit"), together("lendingLimit"))


def mappings_in(found: object) -> list[dict[str, Any]]:
    """The mappings in a list; of anything else none."""
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
